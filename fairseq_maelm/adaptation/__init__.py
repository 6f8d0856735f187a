"""Adaptation of a pretrained encoder to the text of a domain, mixed with general text."""
