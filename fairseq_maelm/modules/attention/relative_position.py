"""Learned relative position bias between original positions (Raffel et al., 2020, section 2.1)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_maelm.modules.attention.context import AttentionContext, Tokens, Visibility


def t5_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Return T5's bidirectional bucket of a relative position.

    The upper half of the buckets is for keys after the query. In each half, the first ``num_buckets / 4`` buckets hold
    one distance each; the others grow logarithmically up to ``max_distance``, and the last holds all larger distances.

    Args:
        distance: position of the key minus position of the query.
        num_buckets: number of buckets, a multiple of 4.
        max_distance: distance beyond which all distances share a bucket.
    """
    half = num_buckets // 2
    exact = half // 2
    offset, size = (half, distance) if distance > 0 else (0, -distance)
    if size < exact:
        return offset + size
    growth = math.log(size / exact) / math.log(max_distance / exact)
    return offset + min(exact + int(growth * (half - exact)), half - 1)


def reference_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Return the bucket of the authors' code: ``num_buckets / 2 - 1``, plus or minus a bucket of the absolute distance.

    Unlike in T5, logarithms are rounded up. The last bucket is unused.
    """
    half = num_buckets // 2
    exact = half // 2
    size = abs(distance)
    if size >= exact:
        growth = math.log(size / exact) / math.log((max_distance - 1) / exact)
        size = min(exact + math.ceil(growth * (half - 1 - exact)), half - 1)
    return (size if distance >= 0 else -size) + half - 1


BUCKET_FUNCTIONS: dict[str, Callable[[int, int, int], int]] = {"t5": t5_bucket, "reference": reference_bucket}


class RelativePositionBias(nn.Embedding):
    """One table of biases <float>[num_buckets, H], shared by all layers of the encoder.

    Args:
        buckets: "t5" or "reference".
        num_buckets: rows of the table.
        max_distance: distance beyond which all distances share a bucket.
        num_heads: number of heads H.
        max_positions: upper bound P of positions, exclusive.
    """

    def __init__(self, buckets: str, num_buckets: int, max_distance: int, num_heads: int, max_positions: int) -> None:
        super().__init__(num_buckets, num_heads)
        self.max_positions = max_positions
        function = BUCKET_FUNCTIONS[buckets]
        distances = range(1 - max_positions, max_positions)
        # Computed once in double precision: in half precision some distances would get other buckets.
        ids = torch.tensor([function(distance, num_buckets, max_distance) for distance in distances])
        self.bucket_of_distance: Tensor
        self.register_buffer("bucket_of_distance", ids, persistent=False)

    def forward(self) -> Tensor:  # type: ignore[override]
        """Return the bias of each distance <float>[H, 2P - 1], as ``AttentionContext`` takes it.

        The backward pass then sums 2P - 1 rows into the table instead of B * S * S.
        """
        return super().forward(self.bucket_of_distance).t().contiguous()

    def between(self, positions: Tensor, lengths: Tensor | None = None) -> AttentionContext:
        """Return the context with the bias of every pair of ``positions`` <int64>[B, S]; ``lengths`` <int64>[B].

        ``forward`` returns only a tensor, because fairseq searches for the origin of a NaN with module hooks, which
        accept nothing else.
        """
        return AttentionContext(Tokens(positions), Visibility(lengths), self())
