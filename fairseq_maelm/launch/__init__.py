"""Start fairseq-train: recipes, command lines, and progress read from the log."""
