"""Checkpoint files as data: where they are, whether they are intact, and what they hold."""
