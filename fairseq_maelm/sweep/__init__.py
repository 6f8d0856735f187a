"""Sweeps: a grid of fine-tuning runs, the programs that it is made of, and the table of what came out."""
