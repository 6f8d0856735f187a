"""Learned relative position bias (Raffel et al., 2020, section 2.1), indexed by original positions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias


def t5_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """T5's bucket of a relative position, in both directions.

    Half of the buckets serve keys after the query. Of each half, the first half holds one distance each, the second
    grows logarithmically up to ``max_distance``; everything beyond shares the last bucket.

    The distance is that of the key minus that of the query; the number of buckets is a multiple of 4.
    """
    half = num_buckets // 2
    exact = half // 2
    offset, size = (half, distance) if distance > 0 else (0, -distance)
    if size < exact:
        return offset + size
    growth = math.log(size / exact) / math.log(max_distance / exact)
    return offset + min(exact + int(growth * (half - exact)), half - 1)


def reference_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """The authors' bucket function: symmetric around bucket ``num_buckets / 2 - 1``, rounding up; one is unused."""
    half = num_buckets // 2
    exact = half // 2
    size = abs(distance)
    if size >= exact:
        growth = math.log(size / exact) / math.log((max_distance - 1) / exact)
        size = min(exact + math.ceil(growth * (half - 1 - exact)), half - 1)
    return (size if distance >= 0 else -size) + half - 1


BUCKET_FUNCTIONS: dict[str, Callable[[int, int, int], int]] = {"t5": t5_bucket, "reference": reference_bucket}


def check_buckets(num_buckets: int, max_distance: int) -> None:
    """Refuse bucket settings that cannot work.

    Raises:
        ValueError: says which setting and what is possible.
    """
    if num_buckets < 4 or num_buckets % 4:
        raise ValueError(
            f"the number of relative buckets must be a positive multiple of 4 and is {num_buckets}: half of them serve "
            "each direction, and half of those single distances. Use --relative-buckets none for no relative bias"
        )
    if max_distance <= num_buckets // 4 + 1:
        raise ValueError(
            f"the largest relative distance ({max_distance}) must exceed a quarter of the number of buckets plus one "
            f"({num_buckets // 4 + 1}): smaller distances have buckets of their own"
        )


class RelativePositionBias(nn.Embedding):
    """One table of biases <float>[num_buckets, H], shared by all layers of the encoder.

    Args:
        buckets: "t5" or "reference".
        num_buckets: rows of the table.
        max_distance: from here on all distances share a bucket.
        num_heads: H.
        max_positions: positions lie in [0, max_positions).
    """

    def __init__(self, buckets: str, num_buckets: int, max_distance: int, num_heads: int, max_positions: int) -> None:
        check_buckets(num_buckets, max_distance)
        super().__init__(num_buckets, num_heads)
        self.max_positions = max_positions
        function = BUCKET_FUNCTIONS[buckets]
        distances = range(1 - max_positions, max_positions)
        # Integers computed once in double precision: in half precision some distances fall into other buckets.
        ids = torch.tensor([function(distance, num_buckets, max_distance) for distance in distances])
        self.bucket_of_distance: Tensor
        self.register_buffer("bucket_of_distance", ids, persistent=False)

    def forward(self) -> Tensor:  # type: ignore[override]
        """The table spread over distances: <float>[H, 2P - 1], as ``AttentionBias`` wants it.

        Its gradient gathers 2P - 1 rows and not B * S * S.
        """
        return super().forward(self.bucket_of_distance).t().contiguous()

    def between(self, positions: Tensor, lengths: Tensor | None = None) -> AttentionBias:
        """Return the bias of every pair of positions; arguments as in ``AttentionBias``.

        It is not the result of ``forward``, because hooks of modules, with which fairseq looks for the origin of a NaN,
        take tensors alone.
        """
        return AttentionBias(self(), positions, lengths)
