"""Rows of all ranks in one tensor, with gradients that go back to the rank each row came from."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather


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
    ranks = 1 if group is None or not dist.is_initialized() else dist.get_world_size(group)
    if ranks == 1:
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(sizes, own, group=group)
    most = max(map(int, sizes))
    if not most:
        return rows
    # Padded at its end: torch gathers what has one shape.
    padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, most - len(rows)))
    return torch.cat([part[: int(size)] for part, size in zip(all_gather(padded.contiguous(), group), sizes)])
