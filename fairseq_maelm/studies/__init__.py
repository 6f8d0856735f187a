"""Sweeps: a grid of fine-tuning runs, the programs that are run, and the table of results."""
