"""Keep freed memory in processes that train on a CPU, so that the next batch can use it again.

Reason: glibc returns large freed blocks to the system and requests them again a moment later, and the system clears
each page on its first use. A training step frees and allocates the same gigabytes again and again, which takes a tenth
of its time or more. ``resuming`` applies the change when a run on a CPU looks for a checkpoint, for all tasks (also
fairseq's own) and optimizers. Programs that only load a model are not affected. The command ``maelm`` also applies it.
Test: tests/fairseq_fixes/test_memory.py.
"""

import ctypes
import logging
import os
import platform
from functools import cache

logger = logging.getLogger(__name__)

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
# Environment variables that choose an allocator or configure glibc's.
_USERS_CHOICE = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed_memory() -> bool:
    """Make this process keep freed memory, and return whether that was possible.

    Peak memory is a few percent higher if all batches have one shape, and up to 40 percent if shapes vary.
    Nothing changes if the C library is not glibc, or if an environment variable chooses an allocator.
    """
    chosen = next((name for name in _USERS_CHOICE if os.environ.get(name)), None)
    if chosen is not None or platform.libc_ver()[0] != "glibc":
        logger.debug("memory allocation is not changed: %s", chosen or "the C library is not glibc")
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Allocate large tensors on the heap, which only ``unused_memory`` trims; mallopt returns 1 on success.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
