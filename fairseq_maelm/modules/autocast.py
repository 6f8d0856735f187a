"""Mixed precision with weights, gradients and optimizer state in single precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Forward = TypeVar("_Forward", bound=Callable[..., Any])

# The default of fairseq's and torch's LayerNorm.
LAYER_NORM_EPS = 1e-5


def computing_in(precision: str, weight: Tensor, training: bool) -> "AbstractContextManager[Any]":
    """Return the context in which a model computes, with a precision of ``fairseq_maelm.options.PRECISIONS``.

    With "bf16", torch's autocast computes matrix products and attention in bfloat16, and ``LayerNorm`` (below) returns
    bfloat16 by default. Gradients of weights are in single precision. Autocast is not used if the weights, of which any
    one is given, were converted to half precision for inference. In training, fairseq's half precision beside "bf16" is
    a ValueError.
    """
    if precision == "fp32":
        return nullcontext()
    device = weight.device.type
    if training and weight.dtype != torch.float32:
        raise ValueError(
            f"--precision {precision} keeps weights in single precision, but they are in {weight.dtype}: "
            "use either --precision bf16 or --fp16 (common.fp16), not both"
        )
    if training and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != torch.bfloat16:
        raise ValueError("use either --precision bf16 or --amp (common.amp), not both")
    if weight.dtype != torch.float32:
        return nullcontext()
    return torch.autocast(device, torch.bfloat16)


def computing(model: Any) -> "AbstractContextManager[Any]":
    """Return the context in which a ``MaelmModel`` computes."""
    return computing_in(model.precision, model.encoder.embed_tokens.weight, model.training)


def in_its_precision(forward: _Forward) -> _Forward:
    """Make a method of a ``MaelmModel`` compute in the model's precision."""

    @wraps(forward)
    def compute(model: Any, *args: Any, **options: Any) -> Any:
        with computing(model):
            return forward(model, *args, **options)

    return cast(_Forward, compute)


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the dtype of matrix products under autocast on this type of device, or None if autocast is off."""
    # Before torch 2.12, torch.compile cannot trace is_autocast_available.
    if device not in ("cpu", "cuda") and not torch.amp.is_autocast_available(device):
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def multiplies_bfloat16(device: str) -> bool:
    """Return whether a type of device has bfloat16 products, as most GPUs and CPUs with AMX or AVX512_BF16 have."""
    if device == "cpu":
        names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        return any(getattr(torch.cpu, name, bool)() for name in names)
    return torch.cuda.is_bf16_supported(including_emulation=False)


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, but under autocast the result has the dtype of matrix products.

    Under autocast on a GPU, torch's own LayerNorm returns float32: the states between layers would take twice the
    memory and be cast before every product. Mean and variance are still computed in single precision. States in single
    precision, such as sums of embeddings, are rounded only after normalization. With ``returns_single``, the result is
    in single precision even under autocast, as for the residual sums of pre-norm layers.
    """

    def __init__(
        self, width: int, eps: float = LAYER_NORM_EPS, bias: bool = True, returns_single: bool = False
    ) -> None:
        super().__init__(width, eps=eps, bias=bias)
        self.returns_single = returns_single

    def forward(self, states: Tensor) -> Tensor:
        """Normalize states <float>[..., D]."""
        device = states.device.type
        dtype = autocast_dtype(device)
        if dtype is None:
            return super().forward(states)
        with torch.autocast(device, enabled=False):
            weight = self.weight.to(states.dtype)
            bias = None if self.bias is None else self.bias.to(states.dtype)
            normalized = F.layer_norm(states, self.normalized_shape, weight, bias, self.eps)
            return normalized.float() if self.returns_single else normalized.to(dtype)
