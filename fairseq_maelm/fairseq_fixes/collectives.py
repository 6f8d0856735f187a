"""Exchange of objects between ranks.

Reason: two functions of ``fairseq.distributed.utils`` fail. ``all_gather_list``, which collects logging outputs that
cannot be summed, allocates buffers on a GPU even if there is none. ``_broadcast_object_slow``, which sends a checkpoint
from the first rank to the others, calls ``torch.load``. Since torch 2.6, this rejects the checkpoint's configuration,
so no run with several ranks could resume or start from a checkpoint.
Test: tests/fairseq_fixes/test_collectives.py.
"""

from typing import Any

import torch.distributed as dist
from fairseq.distributed import utils as distributed_utils

from fairseq_maelm.fairseq_fixes.replacements import replaces

_gather_on_gpu = distributed_utils.all_gather_list


@replaces(distributed_utils, "all_gather_list")
def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """Gather any data from all ranks, in the order of the ranks."""
    group = distributed_utils.get_global_group() if group is None else group
    if dist.get_backend(group) != "gloo":
        return list(_gather_on_gpu(data, group, max_size))
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, data, group=group)
    return gathered


@replaces(distributed_utils, "_broadcast_object_slow")
def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Send any object from one rank to all others. Unpickling is safe here: the ranks of a run trust each other."""
    holder = [obj]
    dist.broadcast_object_list(holder, src=src_rank, group=group, device=dist_device)
    return holder[0]
