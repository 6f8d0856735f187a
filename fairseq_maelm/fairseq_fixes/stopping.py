"""Let a task stop its training, on all ranks at once and without saving the last state.

Reason: fairseq checks its limits on updates, epochs and time before validation, but a task knows the result only after
validation: if the task then changed a limit, training would still make one update and save. fairseq's loops call the
replaced functions after validation. Once training is stopped, the data iterators report no more batches or epochs, and
saving does nothing, so fairseq ends its loops as after the last epoch. All programs look up these functions on
fairseq's classes and modules, so replacing them there is enough.
Test: tests/fairseq_fixes/test_stopping.py, and tests/end_to_end/test_adaptation.py through the command.
"""

import functools
import logging
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data.iterators import GroupedIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.replacements import replaces
from fairseq_maelm.launch.setup_files import write_waiting_files

logger = logging.getLogger(__name__)

_has_next = GroupedIterator.has_next
_get_train_iterator = Trainer.get_train_iterator
_save_checkpoint = checkpoint_utils.save_checkpoint


class _Run:
    """The run of this process."""

    trainer: Callable[[], Trainer | None] = staticmethod(lambda: None)
    stopped = False


def stop_training(reason: str) -> None:
    """Make fairseq end its loops after the current validation without saving, and log the reason.

    Must be called on all ranks, by the task's ``post_validate``.
    """
    logger.info("stopping training: %s", reason)
    _Run.stopped = True


def running_trainer() -> Trainer | None:
    """Return the trainer of this process's run, or None before its first epoch."""
    return _Run.trainer()


@replaces(GroupedIterator, "has_next")
@functools.wraps(_has_next)
def _has_next_unless_stopped(self: GroupedIterator) -> bool:
    return not _Run.stopped and bool(_has_next(self))


@replaces(Trainer, "get_train_iterator")
@functools.wraps(_get_train_iterator)
def _next_epoch_unless_stopped(self: Trainer, *args: Any, **options: Any) -> Any:
    if _Run.trainer() is not self:
        # A new run, which requests its first epoch.
        _Run.trainer, _Run.stopped = weakref.ref(self), False
    if _Run.stopped:
        # fairseq-train ends if not ``next_epoch_idx <= max_epoch``, which NaN ensures even for max_epoch = inf, the
        # default. It reads no other attribute.
        return SimpleNamespace(next_epoch_idx=math.nan)
    return _get_train_iterator(self, *args, **options)


@replaces(checkpoint_utils, "save_checkpoint")
@functools.wraps(_save_checkpoint)
def _save_unless_stopped(*args: Any, **options: Any) -> Any:
    write_waiting_files()
    return None if _Run.stopped else _save_checkpoint(*args, **options)
