"""The count for ``--patience`` goes into checkpoints.

Reason: fairseq counts validations without improvement in memory alone. A resumed run starts to count again and stops
later than an uninterrupted one, and a run that has stopped for lack of improvement trains on when it is started again.
The count is in attributes of the function ``should_stop_early``, which finds them by its own name: there is no other
place. The function is a global of the program that trains, and that program is ``fairseq_cli.train`` or, under
``torchrun -m fairseq_cli.train``, a second copy of it. Which one runs is known when it asks for a checkpoint to start
from, as every run does: it is the caller.
Test: tests/end_to_end/test_save_folder.py, test_stopped_by_patience.
"""

import functools
from typing import Any

from fairseq.trainer import Trainer

_NAME = "early_stopping"
# Attributes that fairseq gives to its function.
_BEST, _COUNT = "best", "num_runs"

_state_dict = Trainer.state_dict


class _Program:
    """The program of this process: its function that counts, or None if it does not train."""

    counting: Any = None


def watch(program: dict[str, Any]) -> None:
    """Save the count of a program, given by its global names."""
    _Program.counting = program.get("should_stop_early")


def validations_without_improvement() -> int:
    """Return the count of this process."""
    return int(getattr(_Program.counting, _COUNT, 0))


def restore_patience(extra_state: dict[str, Any]) -> None:
    """Continue counting where a checkpoint's run stopped."""
    if _Program.counting is not None:
        vars(_Program.counting).update(extra_state.get(_NAME, {}))


@functools.wraps(_state_dict)
def _with_patience(self: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = _state_dict(self)
    if hasattr(_Program.counting, _BEST):
        state["extra_state"][_NAME] = {name: getattr(_Program.counting, name) for name in (_BEST, _COUNT)}
    return state


def keep_patience() -> None:
    """Make fairseq's trainer save the count."""
    Trainer.state_dict = _with_patience
