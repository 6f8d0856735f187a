"""Give the holes between blocks of the heap back to the system in long trainings on a CPU.

Reason: such a process keeps the memory that it frees (see ``memory``). Batches with different numbers of tokens or
masks leave holes that later blocks do not fit into, so that the heap grows with every update: that of a run with 4
layers of 256 and 4,096 tokens an update from 1.2 to 5 GB in 4,200 updates, with 0.3 GB of blocks in use.
Test: tests/fairseq_fixes/test_memory.py.
"""

import ctypes
import time
from typing import Any

from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.memory import keep_freed_memory
from fairseq_maelm.fairseq_fixes.replacements import replaces

# It takes some 30 ms for a heap of 1 GB, and about as long again until its pages are back in use.
_SECONDS_BETWEEN = 30.0
_given_back = time.monotonic()
_set_num_updates = Trainer.set_num_updates


def give_back_unused_memory() -> None:
    """Give the pages of free blocks of the heap back to the system, if this process keeps freed memory."""
    if keep_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)


@replaces(Trainer, "set_num_updates")
def _count_update(self: Any, num_updates: int) -> None:
    global _given_back
    _set_num_updates(self, num_updates)
    now = time.monotonic()
    if self.device.type == "cpu" and now - _given_back >= _SECONDS_BETWEEN:
        give_back_unused_memory()
        _given_back = now
