"""Leave the garbage of a training to its own process, not to the data loader's workers.

Reason: workers are forked, and inherit the unreachable objects that Python has not collected yet. If a worker collects
tensors of a GPU among them, torch uses CUDA, which does not work after a fork: the worker aborts with "CUDA error:
initialization error", and the training ends. On an H100, fine-tuning for tags failed so at the start of its third
epoch in each of three runs.
Test: tests/fairseq_fixes/test_forked_processes.py.
"""

import gc
import os


def keep_inherited_garbage() -> None:
    """Exclude what a forked process inherits from its garbage collection; a second call changes nothing."""
    os.register_at_fork(after_in_child=gc.freeze)
