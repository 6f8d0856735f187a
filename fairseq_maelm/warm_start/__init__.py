"""Many runs of fairseq's commands without importing torch and fairseq for each of them.

Six seconds of a core go by before ``fairseq-train`` begins to work, which is longer than many a fine-tuning on a small
task takes. Here a server imports the libraries once and forks for every run. A run is a process of its own with its own
arguments, environment, working directory, output and signals; only the imports are shared, never anything that was
computed. Each file of this package runs by itself, without the rest of fairseq_maelm: fairseq refuses a --user-dir that
has been imported before, and the client has to start at once.
"""
