"""Learned relative position bias between original positions (Raffel et al., 2020, section 2.1)."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def t5_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Return T5's bidirectional bucket of a relative position, that of the key minus that of the query.

    The upper half of the buckets, of which there are a multiple of 4, is for keys after the query. In each half, the
    first ``num_buckets / 4`` buckets hold one distance each; the others grow logarithmically up to ``max_distance``,
    and the last holds all larger distances.
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

    ``buckets`` is "t5" or "reference"; distances beyond ``max_distance`` share one. Positions are below
    ``max_positions``.
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

        The backward pass then sums 2P - 1 rows into the table instead of B * S * S. A method that returned a context
        could not be ``forward``: fairseq searches for the origin of a NaN with module hooks, which take tensors only.
        """
        return super().forward(self.bucket_of_distance).t().contiguous()


def spread(of_distance: Tensor, index: Tensor) -> Tensor:
    """Look up columns <int64>[B, S, S] of <float>[H, 2P - 1]; return <float>[B, H, S, S].

    Except in compiled graphs, the result is stored as [H, B, S, S].
    """
    if torch.compiler.is_compiling():  # the compiler cannot derive the views below for all shapes
        return F.embedding(index, of_distance.t()).permute(0, 3, 1, 2)
    return of_distance.index_select(1, index.view(-1)).view(len(of_distance), *index.shape).transpose(0, 1)


def sum_over_distances(gradient: Tensor, index: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sum a gradient <float>[B, H, S, S] over all pairs with an equal distance; return <dtype>[H, width].

    ``index`` <int64>[B, S, S] has each pair's column of the result.

    On a CPU the sum is computed in double precision and is deterministic, elsewhere at least in single precision.
    """
    flat = index.view(-1)
    if gradient.device.type != "cpu":
        precise = torch.promote_types(dtype, torch.float32)
        by_head = gradient.transpose(0, 1).reshape(gradient.shape[1], -1).to(precise)
        return by_head.new_zeros(len(by_head), width).index_add_(1, flat, by_head).to(dtype)
    # torch's index_add_ takes 30 times as long here.
    heads = [torch.bincount(flat, head.reshape(-1).double(), width) for head in gradient.unbind(1)]
    return torch.stack(heads).to(dtype)


class Attach(torch.autograd.Function):
    """Makes a dense bias [B, H, S, S], computed without autograd, differentiable with respect to ``of_distance``.

    It does not use ``save_for_backward``: activation checkpointing requires a layer to save the same number of tensors
    when it is recomputed, and the first layer would save fewer, because it then finds the bias already computed.
    """

    @staticmethod
    def forward(ctx: Any, of_distance: Tensor, values: Tensor, index: Tensor) -> Tensor:
        """Return the dense bias ``values`` as a function of ``of_distance``."""
        ctx.index, ctx.width, ctx.dtype = index, of_distance.shape[1], of_distance.dtype
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Sum the dense gradient over distances."""
        # With padding the sequences have different biases even if they share positions.
        if len(gradient) > len(ctx.index):
            gradient = gradient.sum(dim=0, keepdim=True)
        return sum_over_distances(gradient, ctx.index, ctx.width, ctx.dtype), None, None
