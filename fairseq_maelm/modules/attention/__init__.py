"""Attention with relative positions: the layers, and the backends that compute it."""
