"""The count for ``--patience`` goes into checkpoints.

Reason: fairseq counts validations without improvement in memory alone. A resumed run counts anew and stops later than
one that was never interrupted, and a run that has stopped for want of improvement trains on each time it is started
again.
Versions: fairseq 0.12.2 and fairseq-fixed 0.12.3.1.
Test: tests/end_to_end/test_finished.py, test_stopped_by_patience.
"""

import functools
from typing import Any, Dict

from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.programs import training_programs

_NAME = "early_stopping"
# Attributes that fairseq gives to its function should_stop_early.
_BEST, _COUNT = "best", "num_runs"

_state_dict = Trainer.state_dict


def validations_without_improvement() -> int:
    """The count of this process."""
    return max((getattr(program.should_stop_early, _COUNT, 0) for program in training_programs()), default=0)


def restore_patience(extra_state: Dict[str, Any]) -> None:
    """Go on counting where a checkpoint's run stopped; one that counted nothing leaves all as it is."""
    for name, value in extra_state.get(_NAME, {}).items():
        for program in training_programs():
            setattr(program.should_stop_early, name, value)


@functools.wraps(_state_dict)
def _with_patience(self: Trainer) -> Dict[str, Any]:
    state: Dict[str, Any] = _state_dict(self)
    for program in training_programs():
        counted = program.should_stop_early
        if hasattr(counted, _BEST):
            state["extra_state"][_NAME] = {name: getattr(counted, name) for name in (_BEST, _COUNT)}
    return state


def keep_patience() -> None:
    """Make fairseq's trainer save the count from now on, in this process."""
    Trainer.state_dict = _with_patience
