"""Let a task stop its training, on all ranks at once and without saving the last state; remember --patience.

fairseq checks its limits on updates, epochs and time before validation, but a task knows the result only after
validation: if the task then changed a limit, training would still make one update and save. fairseq's loops call the
replaced functions after validation. Once training is stopped, the data iterators report no more batches or epochs, and
saving does nothing, so fairseq ends its loops as after the last epoch. All programs look up these functions on
fairseq's classes and modules, so replacing them there is enough.

fairseq counts validations without improvement only in memory, in attributes of the function ``should_stop_early`` in
the training program's module. This is ``fairseq_cli.train`` or, under ``torchrun -m fairseq_cli.train``, a second copy
of that module. Every run calls ``load_checkpoint`` from the right copy.
Tests: tests/fairseq_fixes/test_stopping.py; tests/end_to_end/test_adaptation.py, test_save_folder.py.
"""

import functools
import logging
import math
from types import SimpleNamespace
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data.iterators import GroupedIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes import replaces
from fairseq_maelm.launch.progress import follow, running_trainer
from fairseq_maelm.launch.run_record import write_waiting_files

logger = logging.getLogger(__name__)

_has_next = GroupedIterator.has_next
_get_train_iterator = Trainer.get_train_iterator
_save_checkpoint = checkpoint_utils.save_checkpoint
_state_dict = Trainer.state_dict

_EARLY_STOPPING = "early_stopping"
# Attributes of fairseq's function.
_BEST, _COUNT = "best", "num_runs"


class _Run:
    """The run of this process."""

    stopped = False
    counting: Any = None  # ``should_stop_early`` of the training program; None if nothing is trained


def stop_training(reason: str) -> None:
    """Make fairseq end its loops after the current validation without saving, and log the reason.

    Must be called on all ranks, by the task's ``post_validate``.
    """
    logger.info("stopping training: %s", reason)
    _Run.stopped = True


_OF_OUR_TASK = {
    "why": "after the validation that ends a run, training makes one more update and saves it",
    "acts_on": "runs that our task stops",
    "upstream": "yes, as a method of tasks",
}


@replaces(GroupedIterator, "has_next", **_OF_OUR_TASK)
@functools.wraps(_has_next)
def _has_next_unless_stopped(self: GroupedIterator) -> bool:
    return not _Run.stopped and bool(_has_next(self))


@replaces(Trainer, "get_train_iterator", **_OF_OUR_TASK)
@functools.wraps(_get_train_iterator)
def _next_epoch_unless_stopped(self: Trainer, *args: Any, **options: Any) -> Any:
    if running_trainer() is not self:
        # A new run, which requests its first epoch.
        follow(self)
        _Run.stopped = False
    if _Run.stopped:
        # fairseq-train ends if not ``next_epoch_idx <= max_epoch``, which NaN ensures even for max_epoch = inf, the
        # default. It reads no other attribute.
        return SimpleNamespace(next_epoch_idx=math.nan)
    return _get_train_iterator(self, *args, **options)


@replaces(
    checkpoint_utils,
    "save_checkpoint",
    why="training saves again after its last validation; save folders lack the vocabulary needed to encode text",
    acts_on="runs that our task stops; tasks with files to copy, also fairseq's sentence_prediction",
    upstream="no: it copies our files",
)
@functools.wraps(_save_checkpoint)
def _save_unless_stopped(*args: Any, **options: Any) -> Any:
    write_waiting_files()
    return None if _Run.stopped else _save_checkpoint(*args, **options)


def watch_patience(program: dict[str, Any]) -> None:
    """Use the counter of a training program, given the globals of its module."""
    _Run.counting = program.get("should_stop_early")


def validations_without_improvement() -> int:
    """Return this run's number of consecutive validations without improvement."""
    return int(getattr(_Run.counting, _COUNT, 0))


def restore_patience(extra_state: dict[str, Any]) -> None:
    """Restore the counter from a checkpoint."""
    if _Run.counting is not None:
        vars(_Run.counting).update(extra_state.get(_EARLY_STOPPING, {}))


@replaces(
    Trainer,
    "state_dict",
    why="a run stopped by --patience continues when it is started again; an interrupted one stops too late",
    acts_on="runs with --patience",
)
@functools.wraps(_state_dict)
def _with_patience(self: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = _state_dict(self)
    if hasattr(_Run.counting, _BEST):
        state["extra_state"][_EARLY_STOPPING] = {name: getattr(_Run.counting, name) for name in (_BEST, _COUNT)}
    return state
