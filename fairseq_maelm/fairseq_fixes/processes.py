"""Several processes, and the memory of each.

fairseq gathers logging outputs that cannot be summed through buffers of 16 KB on a GPU, and sends a checkpoint to other
ranks by ``torch.load``, which rejects its configuration. The processes that it starts for the GPUs of a machine import
the script that was started, and ``maelm`` imports this package; fairseq then finds its --user-dir already imported and
registers nothing.

Workers of the data loader are forked, and inherit the unreachable objects that Python has not collected yet. If a
worker collects tensors of a GPU among them, torch uses CUDA, which does not work after a fork. On an H100, fine-tuning
for tags failed so at the start of its third epoch in each of three runs.

A training on a CPU keeps the memory that it frees (``launch.memory``). Batches with different numbers of tokens or
masks leave gaps that are too small for later blocks. In a run with 4 layers of width 256 and 4,096 tokens per update,
the heap grew from 1.2 to 5 GB in 4,200 updates, though only 0.3 GB were in use.
Tests: tests/fairseq_fixes/test_processes.py, tests/launch/test_memory.py.
"""

import gc
import os
import time
from typing import Any

import torch.distributed as dist
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes import changes, replaces
from fairseq_maelm.launch.memory import give_back_unused_memory
from fairseq_maelm.launch.screen import show_in_rank
from fairseq_maelm.registration import register

# Trimming a heap of 1 GB and clearing its pages again takes about 60 ms, on some virtual machines up to a second.
_SECONDS_BETWEEN = 120.0
_given_back = time.monotonic()

_start = distributed_utils.distributed_main
_set_num_updates = Trainer.set_num_updates


@replaces(
    distributed_utils,
    "all_gather_list",
    why="fails without a GPU, and on several GPUs when validating a batch with 8,000 labeled words",
    acts_on="all runs on several ranks",
)
def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """Gather any data from all ranks, in the order of the ranks; ``max_size`` is not a limit."""
    group = distributed_utils.get_global_group() if group is None else group
    gathered: list[Any] = [None] * dist.get_world_size(group)
    # As in fairseq, tensors arrive on the CPU: the sender's GPU is not the receiver's.
    dist.all_gather_object(gathered, utils.move_to_cpu(data), group=group)
    return gathered


@replaces(
    distributed_utils,
    "_broadcast_object_slow",
    why="since torch 2.6, runs on several ranks cannot resume or start from a checkpoint",
    acts_on="all runs on several ranks",
)
def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Send any object from one rank to all others. Unpickling is safe here: the ranks of a run trust each other."""
    holder = [obj]
    dist.broadcast_object_list(holder, src=src_rank, group=group, device=dist_device)
    return holder[0]


# Without functools.wraps: pickle finds a function by its name, and a new process must find this one.
@replaces(
    distributed_utils,
    "distributed_main",
    why='`maelm pretrain` and `maelm finetune` on several GPUs end with "Could not infer task type"',
    acts_on="all runs whose ranks fairseq starts",
    upstream="no: it registers this package",
)
def start_rank(number: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Register this package, then run ``main`` as a rank, the one with this number on this machine."""
    register()
    show_in_rank()
    _start(number, main, cfg, kwargs)


@changes(
    "os.register_at_fork",
    why='a data loader worker aborts with "CUDA error: initialization error", and training ends',
    acts_on="all processes that this process forks",
)
def _keep_inherited_garbage() -> None:
    """Exclude what a forked process inherits from its garbage collection."""
    os.register_at_fork(after_in_child=gc.freeze)


@replaces(
    Trainer,
    "set_num_updates",
    why="memory grows with every update of a long training run on a CPU",
    acts_on="all runs on a CPU",
    upstream="no: it results from our allocator settings",
)
def _count_update(self: Any, num_updates: int) -> None:
    global _given_back
    _set_num_updates(self, num_updates)
    now = time.monotonic()
    if self.device.type == "cpu" and now - _given_back >= _SECONDS_BETWEEN:
        give_back_unused_memory()
        _given_back = now
