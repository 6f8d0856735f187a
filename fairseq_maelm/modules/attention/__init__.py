"""Attention with relative positions: the layers, and the ways of computing it."""
