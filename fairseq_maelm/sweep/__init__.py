"""Sweeps: fine-tune many times side by side, on this machine or by SLURM, and report the results."""
