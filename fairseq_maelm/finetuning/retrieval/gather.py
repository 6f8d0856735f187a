"""Rows of all ranks in one tensor, with gradients that go back to the rank each row came from."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: Any) -> int:
    """How many ranks a process group has; 1 without one, as in a run that is not distributed."""
    return 1 if group is None or not dist.is_initialized() else dist.get_world_size(group)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], group: Any) -> Tensor:
        rank = dist.get_rank(group)
        ctx.group, ctx.first, ctx.size = group, sum(sizes[:rank]), sizes[rank]
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # Every rank's loss depends on every row: a row's gradient is the sum of what all ranks have for it.
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed[ctx.first : ctx.first + ctx.size], None, None


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """Put the rows of all ranks below one another, in the order of the ranks.

    All ranks must call it at the same point, and so must their backward passes. Ranks may have different numbers of
    rows, also none.

    Args:
        rows: <float or int64>[n, ...], equal in all but n over the ranks, on the device of the group's backend.
        group: torch's process group; None in a run that is not distributed.

    Returns:
        [sum of n, ...]; the rows themselves on a single rank.
    """
    ranks = world_size(group)
    if ranks == 1:
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(sizes, own, group=group)
    counts = [int(size) for size in sizes]
    if not max(counts):
        return rows
    gathered: Tensor = _GatherRows.apply(rows, counts, group)
    return gathered
