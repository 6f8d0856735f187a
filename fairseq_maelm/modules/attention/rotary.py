"""Rotary positions (Su et al., 2024): queries and keys are rotated by angles that grow with the token's position.

Elements i and i + d_h / 2 of a head form a pair, as in Hugging Face's models, so that weights can be copied.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.autocast import autocast_dtype
from fairseq_maelm.modules.output_positions import OutputPositions


class Rotation(NamedTuple):
    """Cosines and sines of the angles at some positions.

    Attributes:
        cos: <float>[B or 1, S, 1, d_h / 2], or <float>[M, 1, d_h / 2] at output positions.
        sin: sines of the same shape.
    """

    cos: Tensor
    sin: Tensor

    def take(self, output_at: OutputPositions, batch: int) -> "Rotation":
        """Return the rotation at the output positions; ``batch`` is the number of sequences."""
        return Rotation(*(output_at.take(table.expand(batch, -1, -1, -1)) for table in self))


def rotations(positions: Tensor, bases: Iterable[int], head_dim: int, like: Tensor) -> dict[int, Rotation]:
    """Return rotary base -> rotation, in the dtype of the queries.

    Angles are computed in single precision: in half precision, neighboring positions would get the same angles.

    Args:
        positions: <int64>[B, S] original positions; B may be 1 if all sequences share them.
        bases: rotary bases. Wavelengths are a geometric series from 2 pi to 2 pi * base.
        head_dim: width d_h of a head, even.
        like: states of the model. Their dtype is used without autocast.
    """
    dtype = autocast_dtype(like.device.type) or like.dtype
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    found = {}
    for base in set(bases):
        angles = positions[:, :, None, None].float() * (1.0 / base**exponents)
        found[base] = Rotation(angles.cos().to(dtype), angles.sin().to(dtype))
    return found


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys <float>[B, S, H, d_h] or [M, H, d_h]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def split_rotated(packed: Tensor, rotation: Rotation, values: int = 1) -> tuple[Tensor, ...]:
    """Split <float>[B, S, parts, H, d_h] into <float>[B, H, S, d_h]; rotate all parts except the last ``values``.

    Except in compiled graphs, ``packed`` is rotated in place, so nothing else may use it.
    """
    if not torch.compiler.is_compiling():
        return _SplitRotated.apply(packed, *rotation, values)
    unturned, value = packed.split([packed.shape[2] - values, values], dim=2)
    turned = rotate(unturned, Rotation(*(table[:, :, None] for table in rotation)))
    return tuple(part for parts in (turned, value) for part in parts.permute(2, 0, 3, 1, 4).unbind())


class _SplitRotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor, sin: Tensor, values: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.values = values
        turn(packed[:, :, :-values], cos, sin)
        return tuple(packed.permute(2, 0, 3, 1, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = pack(gradients)
        turn(gradient[:, :, : -ctx.values], cos, sin.neg())
        return gradient, None, None, None


def turn(packed: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate <float>[B, S, parts, H, d_h] in place."""
    first, second = packed.chunk(2, dim=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    from_first = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(from_first)


def pack(gradients: tuple[Tensor, ...]) -> Tensor:
    """Join the gradients of parts <float>[B, H, S, d_h] into one tensor [B, S, parts, H, d_h].

    Nothing is copied if they are views of such a tensor.
    """
    batch, heads, length, width = gradients[0].shape
    shape = (batch, length, len(gradients), heads, width)
    places = torch.empty(shape, device="meta", dtype=gradients[0].dtype).permute(2, 0, 3, 1, 4)
    storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    if len(storages) == 1 and all(
        gradient.stride() == place.stride() and gradient.storage_offset() == place.storage_offset()
        for gradient, place in zip(gradients, places)
    ):
        return gradients[0].as_strided(shape, torch.empty(shape, device="meta").stride())
    return torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)
