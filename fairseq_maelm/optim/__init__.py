"""Optimizers for ``fairseq-train --optimizer``."""
