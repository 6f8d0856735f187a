"""A task can stop the training it is part of, on all ranks at once and without saving what it is stopped for.

Reason: fairseq reads its limits of updates, epochs and time before a validation, and a task is told of a validation's
result only then: a limit set by the task would train on for an update and save. What fairseq's loops do ask afterwards
is whether there is more data and where to save. From a stop on there is no more data, neither in this epoch nor in
another, and nothing is saved; so fairseq ends its loops as after a last epoch, with all that it does at the end.
These are functions that fairseq looks up on its own classes and modules, whatever program runs them.
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

logger = logging.getLogger(__name__)

_has_next = GroupedIterator.has_next
_get_train_iterator = Trainer.get_train_iterator
_save_checkpoint = checkpoint_utils.save_checkpoint


class _Run:
    """The run of this process: its trainer, and whether it has been stopped."""

    trainer: Callable[[], Trainer | None] = staticmethod(lambda: None)
    stopped = False


def stop_training(reason: str) -> None:
    """Make fairseq leave its loops after the validation that is under way, and log why.

    Nothing is saved of the state it is stopped in. To be called on all ranks, by the task's ``post_validate``.
    """
    logger.info("stopping training: %s", reason)
    _Run.stopped = True


def running_trainer() -> Trainer | None:
    """Return the trainer of this process's run, None before the run asks for its first epoch."""
    return _Run.trainer()


@functools.wraps(_has_next)
def _has_next_unless_stopped(self: GroupedIterator) -> bool:
    return not _Run.stopped and bool(_has_next(self))


@functools.wraps(_get_train_iterator)
def _next_epoch_unless_stopped(self: Trainer, *args: Any, **options: Any) -> Any:
    if _Run.trainer() is not self:
        # Each run asks for its first epoch before all else.
        _Run.trainer, _Run.stopped = weakref.ref(self), False
    if _Run.stopped:
        # All that fairseq-train asks of an epoch that it does not train.
        return SimpleNamespace(next_epoch_idx=math.inf)
    return _get_train_iterator(self, *args, **options)


@functools.wraps(_save_checkpoint)
def _save_unless_stopped(*args: Any, **options: Any) -> Any:
    return None if _Run.stopped else _save_checkpoint(*args, **options)


def let_tasks_stop() -> None:
    """Make fairseq's loops heed ``stop_training``."""
    GroupedIterator.has_next = _has_next_unless_stopped
    Trainer.get_train_iterator = _next_epoch_unless_stopped
    checkpoint_utils.save_checkpoint = _save_unless_stopped
