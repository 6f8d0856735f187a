"""Memory of a process that computes on a CPU: what one batch frees, the next one takes again.

glibc hands large freed blocks back to the system and asks for them anew a moment later; the system then clears every
page on its first touch. A training step frees and takes the same gigabytes again and again: that is a tenth of its time
and more. fairseq's trainer sets this up for every task, its own sentence_prediction included, with any optimizer, when
it is made for a training on a CPU; programs that only load a model make no trainer and are left alone. The command
``maelm`` does it for itself.
Test: tests/fairseq_fixes/test_memory.py.
"""

import ctypes
import functools
import logging
import os
import platform
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
# Somebody who sets one of these has an allocator, or settings of glibc's, of their own.
_USERS_CHOICE = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed_memory() -> bool:
    """Make this process keep freed memory for itself, and return whether that was possible.

    For processes of this package's commands and of fairseq-train: programs that merely use the package decide for
    themselves. The price is memory: where all batches have one shape the peak is a few percent higher, where shapes
    vary up to 40 percent. Nothing is done where the C library is not glibc, or where an environment variable chooses
    an allocator.
    """
    chosen = next((name for name in _USERS_CHOICE if os.environ.get(name)), None)
    if chosen is not None or platform.libc_ver()[0] != "glibc":
        logger.debug("memory allocation is left as it is: %s", chosen or "the C library is not glibc")
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # No blocks of their own for large tensors, and nothing given back at the end of the heap; mallopt returns 1 if it
    # took a setting.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


@cache
def keep_memory_in_training() -> None:
    """Make fairseq's trainer keep freed memory if it trains on a CPU."""
    # The module is also imported by ``maelm``, which would wait seconds for fairseq.
    from fairseq.trainer import Trainer

    original = Trainer.__init__

    @functools.wraps(original)
    def set_up(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.device.type == "cpu":
            keep_freed_memory()

    Trainer.__init__ = set_up
