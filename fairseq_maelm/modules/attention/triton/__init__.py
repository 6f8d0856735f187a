"""Attention with relative positions as Triton kernels, for GPUs."""
