"""Save the counter of ``--patience`` in checkpoints.

Reason: fairseq counts validations without improvement only in memory. A resumed run counts from 0 and so stops later
than an uninterrupted run, and a run stopped by --patience continues training when started again.

fairseq stores the counter in attributes of the function ``should_stop_early`` in the training program's module. This is
``fairseq_cli.train`` or, under ``torchrun -m fairseq_cli.train``, a second copy of that module. Every run calls
``load_checkpoint`` from the right copy.
Test: tests/end_to_end/test_save_folder.py, test_stopped_by_patience.
"""

import functools
from typing import Any

from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.replacements import replaces

_NAME = "early_stopping"
# Attributes of fairseq's function.
_BEST, _COUNT = "best", "num_runs"

_state_dict = Trainer.state_dict


class _Program:
    """The training program of this process."""

    counting: Any = None  # its ``should_stop_early``; None if nothing is trained


def watch(program: dict[str, Any]) -> None:
    """Use the counter of a training program, given the globals of its module."""
    _Program.counting = program.get("should_stop_early")


def validations_without_improvement() -> int:
    """Return this run's number of consecutive validations without improvement."""
    return int(getattr(_Program.counting, _COUNT, 0))


def restore_patience(extra_state: dict[str, Any]) -> None:
    """Restore the counter from a checkpoint."""
    if _Program.counting is not None:
        vars(_Program.counting).update(extra_state.get(_NAME, {}))


@replaces(Trainer, "state_dict")
@functools.wraps(_state_dict)
def _with_patience(self: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = _state_dict(self)
    if hasattr(_Program.counting, _BEST):
        state["extra_state"][_NAME] = {name: getattr(_Program.counting, name) for name in (_BEST, _COUNT)}
    return state
