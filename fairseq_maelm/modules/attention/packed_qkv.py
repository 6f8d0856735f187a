"""Split queries, keys and values, which one matrix product computes, for a backend."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.rotary import packed

Attend = Callable[[Tensor, Tensor, Tensor, AttentionBias | None, float], Tensor]


def attend_parts(attend: Attend, qkv: Tensor, bias: AttentionBias | None, dropout: float) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    return attend(*split_qkv(qkv), bias, dropout).transpose(1, 2)


def split_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value, <float>[B, H, S, d_h] each, as views of <float>[B, S, 3, H, d_h]."""
    if qkv.device.type == "cpu" and not torch.compiler.is_compiling():
        return _SplitQkv.apply(qkv)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
    return query, key, value


class _SplitQkv(torch.autograd.Function):
    """Packs the gradients with at most one copy; autograd's backward of ``unbind`` copies everything twice."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> tuple[Tensor, ...]:
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return packed(gradients)
