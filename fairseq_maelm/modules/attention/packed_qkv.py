"""Split the joint result of one matrix product into queries, keys and values for a backend."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.rotary import pack

Attend = Callable[[Tensor, Tensor, Tensor, AttentionBias | None, float], Tensor]


def attend_parts(attend: Attend, qkv: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query, key, value = split_packed(qkv)
    return attend(query, key, value, bias, dropout).transpose(1, 2)


def split_packed(packed: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of <float>[B, S, parts, H, d_h] as views <float>[B, H, S, d_h]."""
    if packed.device.type == "cpu" and not torch.compiler.is_compiling():
        return _SplitPacked.apply(packed)
    return packed.permute(2, 0, 3, 1, 4).unbind()


class _SplitPacked(torch.autograd.Function):
    """Splits like ``unbind``, whose backward pass copies gradients twice; this one copies them at most once."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> tuple[Tensor, ...]:
        return tuple(packed.permute(2, 0, 3, 1, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return pack(gradients)
