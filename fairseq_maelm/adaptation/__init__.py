"""Adapting a pretrained encoder to a domain: its words become pieces of the vocabulary."""
