"""Queries, keys and values that one matrix product made, taken apart for a backend."""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias

Attend = Callable[[Tensor, Tensor, Tensor, Optional[AttentionBias], float], Tensor]


def attend_parts(attend: Attend, qkv: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """Self-attention from queries, keys and values that one matrix product made.

    Args:
        attend: the backend.
        qkv: <float>[B, S, 3, H, d_h]; the rest as in ``plain.attend``.

    Returns:
        <float>[B, S, H, d_h].
    """
    return attend(*split_qkv(qkv), bias, dropout).transpose(1, 2)


def split_qkv(qkv: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, <float>[B, H, S, d_h] each, as views of <float>[B, S, 3, H, d_h]."""
    if qkv.device.type == "cpu":
        return _SplitQkv.apply(qkv)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
    return query, key, value


class _SplitQkv(torch.autograd.Function):
    """[B, S, 3, H, d_h] to query, key and value; packs their gradients without a copy where they lie so already.

    autograd's own way back through ``permute`` and ``unbind`` copies everything twice.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tuple[Tensor, ...]:
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        batch, heads, length, width = gradients[0].shape
        shape = (batch, length, 3, heads, width)
        places = torch.empty(shape, device="meta", dtype=gradients[0].dtype).permute(2, 0, 3, 1, 4)
        storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
        if len(storages) == 1 and all(
            gradient.stride() == place.stride() and gradient.storage_offset() == place.storage_offset()
            for gradient, place in zip(gradients, places)
        ):
            return gradients[0].as_strided(shape, torch.empty(shape, device="meta").stride())
        return torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)
