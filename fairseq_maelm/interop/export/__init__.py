"""Checkpoints become Hugging Face folders, exactly, or not at all."""
