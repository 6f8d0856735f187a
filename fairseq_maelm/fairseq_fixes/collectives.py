"""Exchange of objects between ranks.

Reason: two functions of ``fairseq.distributed.utils`` fail. ``all_gather_list``, which collects logging outputs that
cannot be summed, allocates buffers on a GPU even if there is none, and refuses more than 16 KB: on several GPUs,
fine-tuning would end in the validation of a batch with 8,000 labeled words. ``_broadcast_object_slow``, which sends a
checkpoint from the first rank to the others, calls ``torch.load``. Since torch 2.6, this rejects the checkpoint's
configuration, so no run with several ranks could resume or start from a checkpoint.
Test: tests/fairseq_fixes/test_collectives.py.
"""

from typing import Any

import torch.distributed as dist
from fairseq import utils
from fairseq.distributed import utils as distributed_utils

from fairseq_maelm.fairseq_fixes.replacements import replaces


@replaces(distributed_utils, "all_gather_list")
def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """Gather any data from all ranks, in the order of the ranks; ``max_size`` is not a limit."""
    group = distributed_utils.get_global_group() if group is None else group
    gathered: list[Any] = [None] * dist.get_world_size(group)
    # As in fairseq, tensors arrive on the CPU: the sender's GPU is not the receiver's.
    dist.all_gather_object(gathered, utils.move_to_cpu(data), group=group)
    return gathered


@replaces(distributed_utils, "_broadcast_object_slow")
def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Send any object from one rank to all others. Unpickling is safe here: the ranks of a run trust each other."""
    holder = [obj]
    dist.broadcast_object_list(holder, src=src_rank, group=group, device=dist_device)
    return holder[0]
