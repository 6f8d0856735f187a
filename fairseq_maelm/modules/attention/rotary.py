"""Rotary positions (Su et al., 2024): queries and keys are turned by angles that grow with the token's position.

Element i of a head and element i + d_h / 2 form a pair, as in Hugging Face's models: weights can be copied.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.precision import autocast_dtype
from fairseq_maelm.modules.wanted import WantedPositions


class Rotation(NamedTuple):
    """Cosines and sines of the angles of some positions.

    Attributes:
        cos, sin: <float>[B or 1, S, 1, d_h / 2], or <float>[M, 1, d_h / 2] of wanted positions.
    """

    cos: Tensor
    sin: Tensor

    def take(self, wanted: WantedPositions, batch: int) -> "Rotation":
        """Return the rows of the wanted positions of a batch of so many sequences."""
        return Rotation(*(wanted.take(table.expand(batch, -1, -1, -1)) for table in self))


def rotations(positions: Tensor, bases: Iterable[int], head_dim: int, like: Tensor) -> dict[int, Rotation]:
    """Return the rotation of positions <int64>[B, S] for each base, in the type in which queries will be.

    Angles are computed in single precision: in half, neighboring positions would coincide.

    Args:
        positions: original positions; B may be 1 when all sequences share them.
        bases: each of a geometric series of wavelengths from 2 pi to 2 pi * base.
        head_dim: d_h, even.
        like: states of the model, which give the type where there is no autocast.
    """
    dtype = autocast_dtype(like.device.type) or like.dtype
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    found = {}
    for base in set(bases):
        angles = positions[:, :, None, None].float() * (1.0 / base**exponents)
        found[base] = Rotation(angles.cos().to(dtype), angles.sin().to(dtype))
    return found


def rotate(heads: Tensor, rotation: Rotation | None) -> Tensor:
    """Return queries or keys <float>[B, S, H, d_h] or [M, H, d_h], turned; as they are without a rotation."""
    if rotation is None:
        return heads
    first, second = heads.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def split_rotated(qkv: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value, <float>[B, H, S, d_h] each, of <float>[B, S, 3, H, d_h], the first two turned.

    Outside of compiled graphs they are turned in place: ``qkv`` must be the fresh result of a matrix product.
    """
    if not torch.compiler.is_compiling():
        return _SplitRotated.apply(qkv, *rotation)
    query_key, value = qkv.split([2, 1], dim=2)
    turned = rotate(query_key, Rotation(*(table[:, :, None] for table in rotation)))
    query, key = turned.permute(2, 0, 3, 1, 4).unbind()
    return query, key, value[:, :, 0].transpose(1, 2)


class _SplitRotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        _turn(qkv, cos, sin)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = packed(gradients)
        _turn(gradient, cos, sin.neg())
        return gradient, None, None


def _turn(qkv: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn queries and keys of <float>[B, S, 3, H, d_h] in place."""
    first, second = qkv[:, :, :2].chunk(2, dim=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    from_first = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(from_first)


def packed(gradients: tuple[Tensor, ...]) -> Tensor:
    """Return gradients of query, key and value, <float>[B, H, S, d_h] each, as one tensor [B, S, 3, H, d_h].

    Nothing is copied where they share its memory already.
    """
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
