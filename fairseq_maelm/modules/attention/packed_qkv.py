"""Split the joint result of one matrix product into queries, keys and values for a backend, and rotate them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.context import AttentionContext
from fairseq_maelm.modules.attention.rotary import Rotation, rotate, turn

Attend = Callable[[Tensor, Tensor, Tensor, AttentionContext, float], Tensor]


def attend_parts(attend: Attend, qkv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Attend with queries, keys and values <float>[B, S, 3, H, d_h]; return <float>[B, S, H, d_h]."""
    query, key, value = split_packed(qkv)
    return attend(query, key, value, context, dropout).transpose(1, 2)


def split_packed(packed: Tensor, rotation: Rotation | None = None, values: int = 1) -> tuple[Tensor, ...]:
    """Split <float>[B, S, parts, H, d_h] into <float>[B, H, S, d_h]; rotate all parts except the last ``values``.

    Except in compiled graphs, ``packed`` is rotated in place, so nothing else may use it.
    """
    compiling = torch.compiler.is_compiling()
    if rotation is None and (compiling or packed.device.type != "cpu"):
        return packed.permute(2, 0, 3, 1, 4).unbind()
    if rotation is None or not compiling:
        return _SplitPacked.apply(packed, *(rotation or (None, None)), values)
    unturned, value = packed.split([packed.shape[2] - values, values], dim=2)
    turned = rotate(unturned, Rotation(*(table[:, :, None] for table in rotation)))
    return tuple(part for parts in (turned, value) for part in parts.permute(2, 0, 3, 1, 4).unbind())


class _SplitPacked(torch.autograd.Function):
    """Rotates and splits; unlike the backward pass of ``unbind``, which copies twice, this one copies at most once."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor | None, sin: Tensor | None, values: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.values = values
        if cos is not None and sin is not None:
            turn(packed[:, :, :-values], cos, sin)
        return tuple(packed.permute(2, 0, 3, 1, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = _pack(gradients)
        if cos is not None:
            turn(gradient[:, :, : -ctx.values], cos, sin.neg())
        return gradient, None, None, None


def _pack(gradients: tuple[Tensor, ...]) -> Tensor:
    """Join the gradients of parts <float>[B, H, S, d_h] into one tensor [B, S, parts, H, d_h].

    Nothing is copied if they are views of such a tensor.
    """
    batch, heads, length, width = gradients[0].shape
    shape = (batch, length, len(gradients), heads, width)
    expected = torch.empty(shape, device="meta", dtype=gradients[0].dtype).permute(2, 0, 3, 1, 4)
    storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    if len(storages) == 1 and all(
        gradient.stride() == view.stride() and gradient.storage_offset() == view.storage_offset()
        for gradient, view in zip(gradients, expected)
    ):
        return gradients[0].as_strided(shape, torch.empty(shape, device="meta").stride())
    return torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)
