"""Optimizers for ``fairseq-train --optimizer``."""

from fairseq_maelm.optim import fused_adamw

__all__ = ["fused_adamw"]
