"""A checkpoint is looked at before fairseq builds what it names.

Reason: fairseq-validate and its relatives build the task and the model that a file names and resolve references in its
configuration; several of fairseq's own tasks and models evaluate string options, so that a file of plain strings runs
code.
Versions: fairseq 0.12.2 and fairseq-fixed 0.12.3.1.
Test: tests/models/test_checkpoint_doors.py, test_fairseq_builds_nothing_foreign.
"""

import functools
from pathlib import Path
from typing import Any, Callable, Sequence

from fairseq import checkpoint_utils

_load = checkpoint_utils.load_model_ensemble_and_task


def look_before_building(look: Callable[[Path], None]) -> None:
    """Make fairseq call ``look`` with each file that it is going to build a model from, in this process.

    Args:
        look: raises ValueError for a file that must not be built.
    """

    @functools.wraps(_load)
    def load_model_ensemble_and_task(filenames: Sequence[str], *args: Any, **options: Any) -> Any:
        for filename in filenames:
            look(Path(filename))
        return _load(filenames, *args, **options)

    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task
