"""Keep freed memory in processes that train on a CPU, so that the next batch can use it again.

glibc returns large freed blocks to the system and requests them again a moment later, and the system clears each page
on its first use. A training step frees and allocates the same gigabytes again and again, which takes a tenth of its
time or more. ``fairseq_fixes.resuming`` calls ``choose_allocation`` when a run on a CPU looks for a checkpoint, for
all tasks (also fairseq's own) and optimizers. If each batch is a single long sequence, all large blocks are returned
instead: that takes a tenth more time and a sixth less memory. Programs that only load a model are not affected. The
command ``maelm`` keeps freed memory from its start. Test: tests/launch/test_memory.py.
"""

import ctypes
import logging
import os
import platform
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
# Environment variables that choose an allocator or configure glibc's.
_USERS_CHOICE = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
# Tokens of a sequence from which on less memory is worth a tenth of the time.
_LONG_SEQUENCE = 4096


@cache
def changeable_allocator() -> ctypes.CDLL | None:
    """Return the C library if it is glibc and no environment variable chooses or configures an allocator, else None."""
    chosen = next((name for name in _USERS_CHOICE if os.environ.get(name)), None)
    if chosen is not None or platform.libc_ver()[0] != "glibc":
        logger.debug("memory allocation is not changed: %s", chosen or "the C library is not glibc")
        return None
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt else None
    except (OSError, AttributeError):
        return None


def keep_freed_memory() -> bool:
    """Make this process keep freed memory, and return whether that was possible.

    Peak memory is a few percent higher if all batches have one shape, up to 40 percent if shapes vary, and a fifth
    higher with a single long sequence.
    """
    library = changeable_allocator()
    # Allocate large tensors on the heap, which only ``malloc_trim`` trims; mallopt returns 1 on success.
    return library is not None and bool(library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, -1))


def return_freed_memory() -> bool:
    """Make this process return freed blocks of 1 MiB or more at once, and return whether that was possible.

    By default glibc raises this limit to 32 MiB as blocks are freed, and gaps between smaller blocks add up.
    """
    library = changeable_allocator()
    # The first two are glibc's defaults; the command ``maelm`` has called ``keep_freed_memory`` before.
    settings = ((_M_MMAP_MAX, 2**16), (_M_TRIM_THRESHOLD, 2**17), (_M_MMAP_THRESHOLD, 2**20))
    return library is not None and all(library.mallopt(*each) for each in settings)


def give_back_unused_memory() -> None:
    """Return the pages of free heap blocks to the system, unless the user chose an allocator."""
    if (library := changeable_allocator()) is not None:
        library.malloc_trim(0)


def choose_allocation(config: Any) -> None:
    """Keep freed memory in a run of fairseq-train, or return it if each batch is one long sequence.

    A smaller batch cannot save memory then.
    """
    length = getattr(config.task, "tokens_per_sample", None) or 0
    most_tokens, most_sequences = config.dataset.max_tokens, config.dataset.batch_size
    is_single = most_sequences == 1 or (most_tokens is not None and most_tokens < 2 * length)
    if length >= _LONG_SEQUENCE and is_single:
        return_freed_memory()
    else:
        keep_freed_memory()
