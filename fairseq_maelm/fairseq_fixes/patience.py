"""The count for ``--patience`` goes into checkpoints.

Reason: fairseq counts validations without improvement in memory alone. A resumed run counts anew and stops later than
one that was never interrupted, and a run that has stopped for want of improvement trains on each time it is started
again. It counts in attributes of its function ``should_stop_early``, which finds them by its own name: there is no
other place to read or to set the count. The function is a global of the program that trains, and that program is
``fairseq_cli.train`` or, under ``torchrun -m fairseq_cli.train``, a second copy of it. Which one runs is known when it
asks for a checkpoint to start from, as every run does: it is the caller.
Versions: fairseq 0.12.2 and fairseq-fixed 0.12.3.1.
Test: tests/end_to_end/test_finished.py, test_stopped_by_patience.
"""

import functools
from typing import Any, Dict

from fairseq.trainer import Trainer

_NAME = "early_stopping"
# Attributes that fairseq gives to its function.
_BEST, _COUNT = "best", "num_runs"

_state_dict = Trainer.state_dict


class _Program:
    """The program of this process: its function that counts, or None if it does not train."""

    counting: Any = None


def watch(program: Dict[str, Any]) -> None:
    """Save the count of a program from now on.

    Args:
        program: its global names.
    """
    _Program.counting = program.get("should_stop_early")


def validations_without_improvement() -> int:
    """The count of this process."""
    return int(getattr(_Program.counting, _COUNT, 0))


def restore_patience(extra_state: Dict[str, Any]) -> None:
    """Go on counting where a checkpoint's run stopped; one that counted nothing leaves all as it is."""
    if _Program.counting is not None:
        vars(_Program.counting).update(extra_state.get(_NAME, {}))


@functools.wraps(_state_dict)
def _with_patience(self: Trainer) -> Dict[str, Any]:
    state: Dict[str, Any] = _state_dict(self)
    if hasattr(_Program.counting, _BEST):
        state["extra_state"][_NAME] = {name: getattr(_Program.counting, name) for name in (_BEST, _COUNT)}
    return state


def keep_patience() -> None:
    """Make fairseq's trainer save the count from now on, in this process."""
    Trainer.state_dict = _with_patience
