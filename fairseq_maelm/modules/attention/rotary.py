"""Rotary positions (Su et al., 2024): queries and keys are rotated by angles that grow with the token's position.

Elements i and i + d_h / 2 of a head form a pair, as in Hugging Face's models, so that weights can be copied.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.modules.autocast import autocast_dtype
from fairseq_maelm.modules.output_positions import OutputPositions


class Rotation(NamedTuple):
    """Cosines and sines of the angles at some positions."""

    cos: Tensor  # <float>[B or 1, S, 1, d_h / 2], or <float>[M, 1, d_h / 2] at output positions
    sin: Tensor  # of the same shape

    def take(self, outputs: OutputPositions, batch: int) -> "Rotation":
        """Return the rotation at the output positions; ``batch`` is the number of sequences."""
        return Rotation(*(outputs.take(table.expand(batch, -1, -1, -1)) for table in self))


def rotations(positions: Tensor, bases: Iterable[int], head_dim: int, like: Tensor) -> dict[int, Rotation]:
    """Return rotary base -> rotation at ``positions`` <int64>[B or 1, S], for heads of even width.

    Their dtype is that of the queries: autocast's or, without autocast, that of the states ``like``. Wavelengths are a
    geometric series from 2 pi to 2 pi * base. Angles are computed in single precision: in half precision, neighboring
    positions would get the same angles.
    """
    dtype = autocast_dtype(like.device.type) or like.dtype
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    turns = {}
    for base in set(bases):
        angles = positions[:, :, None, None].float() * (1.0 / base**exponents)
        turns[base] = Rotation(angles.cos().to(dtype), angles.sin().to(dtype))
    return turns


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys <float>[B, S, H, d_h] or [M, H, d_h]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def turn(packed: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate <float>[B, S, parts, H, d_h] in place."""
    first, second = packed.chunk(2, dim=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    from_first = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(from_first)
