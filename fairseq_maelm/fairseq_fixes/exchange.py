"""What ranks send one another besides tensors, where fairseq's own way does not work.

Reason: two functions of ``fairseq.distributed.utils`` are replaced. ``all_gather_list``, which brings logging outputs
together that are no sums, has its buffers on a GPU also where there is none. ``_broadcast_object_slow``, by which the
first rank gives a checkpoint to the others, reads it by ``torch.load``, which from torch 2.6 on refuses the
configuration that is in it: no run of several ranks could be resumed or start from a checkpoint.
Test: tests/fairseq_fixes/test_exchange.py.
"""

from typing import Any

import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils

_gather_on_gpu = distributed_utils.all_gather_list


def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """Gather any data from all ranks, in their order."""
    group = distributed_utils.get_global_group() if group is None else group
    if dist.get_backend(group) != "gloo":
        return list(_gather_on_gpu(data, group, max_size))
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, data, group=group)
    return gathered


def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Give an object of one rank to all; the ranks of a run trust one another, so it may be any object."""
    holder = [obj]
    dist.broadcast_object_list(holder, src=src_rank, group=group, device=dist_device)
    return holder[0]


def mend_exchange() -> None:
    """Make fairseq use the functions of this module."""
    distributed_utils.all_gather_list = all_gather_list
    distributed_utils._broadcast_object_slow = broadcast_object
