"""Adapting a pretrained encoder to a domain: its text, with general text beside it."""
