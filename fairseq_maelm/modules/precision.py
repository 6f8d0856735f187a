"""Mixed precision that leaves weights, gradients and optimizer in single precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What --precision offers.
PRECISIONS = ("fp32", "bf16")

# What fairseq's LayerNorm, and torch's, adds to the variance.
LAYER_NORM_EPS = 1e-5


def computing_in(precision: str, weight: Tensor, training: bool) -> "AbstractContextManager[Any]":
    """The context in which a model computes.

    Under "bf16", torch's autocast gives bfloat16 to matrix products, to attention and, by ``LayerNorm`` below, to all
    states between them; each weight is cast once in a context and its gradient arrives in single precision.

    Args:
        precision: one of ``PRECISIONS``.
        weight: any weight of the model. Weights that somebody put into half precision for inference are computed with
            as they are.
        training: whether the model is being trained.

    Raises:
        ValueError: if training mixes this with fairseq's own kinds of half precision.
    """
    if precision == "fp32":
        return nullcontext()
    device = weight.device.type
    if training and weight.dtype != torch.float32:
        raise ValueError(
            f"--precision {precision} keeps weights in single precision, but they are in {weight.dtype}: "
            "give either --precision bf16 or --fp16 (common.fp16), not both"
        )
    if training and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != torch.bfloat16:
        raise ValueError("give either --precision bf16 or --amp (common.amp), not both")
    if weight.dtype != torch.float32:
        return nullcontext()
    return torch.autocast(device, torch.bfloat16)


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the type that autocast gives matrix products on a type of device, or None where it is not in force."""
    # torch.compile cannot trace the first question before torch 2.12.
    if device not in ("cpu", "cuda") and not torch.amp.is_autocast_available(device):
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class LayerNorm(nn.LayerNorm):
    """torch's, but under autocast its results have the type that matrix products take, or are in single precision.

    torch's own returns float32 under autocast on a GPU: the states between layers would be moved and kept twice as
    wide, and cast before every product. Mean and variance are computed in single precision either way, and states in
    single precision, the sums of embeddings, are normalized before they are rounded.

    Attributes:
        single: whether results stay in single precision, as those do to which pre-norm layers add.
        halves: weight and bias in autocast's type, where somebody has cast them already.
    """

    single = False
    halves: tuple[Tensor, Tensor | None] | None = None

    def forward(self, states: Tensor) -> Tensor:
        """<float>[..., D] to <float>[..., D]."""
        device = states.device.type
        dtype = autocast_dtype(device)
        if dtype is None:
            return super().forward(states)
        with torch.autocast(device, enabled=False):
            given: tuple[Tensor, Tensor | None] = (self.weight, self.bias)
            if self.halves is not None and states.dtype == dtype:
                given = self.halves
            weight, bias = given
            bias = None if bias is None else bias.to(states.dtype)
            normalized = F.layer_norm(states, self.normalized_shape, weight.to(states.dtype), bias, self.eps)
            return normalized.float() if self.single else normalized.to(dtype)
