"""Write checkpoint files whole or not at all, with content that can be loaded again.

fairseq writes the first file of a save under a temporary name, the same for all runs, and renames it without fsync; a
retry after a failed write appends to the partial data. It copies the other files, such as checkpoint_last.pt, in place.
``files.atomic`` has none of these faults, and the next run removes its leftover files.

Metrics that are numbers or arrays of numpy, such as the correlations of ``sentence_prediction`` and the n-gram counts
of ``translation``, are saved as best result and in meters, and torch does not load them.
Test: tests/fairseq_fixes/test_saving.py.
"""

import copy
import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes import replaces
from fairseq_maelm.files.atomic import atomic_file, copy_file

_ATTEMPTS, _PAUSE_SECONDS = 3, 2.5
# The parts of a checkpoint with metrics; learning-rate schedules in the history may store the best one.
_PARTS_WITH_METRICS = ("extra_state", "optimizer_history")

_copy_in_place = PathManager.copy
_save_otherwise = checkpoint_utils.torch_persistent_save
_save_checkpoint = Trainer.save_checkpoint


@replaces(
    PathManager,
    "copy",
    why="a run killed while saving leaves a truncated checkpoint_last.pt, from which no run can resume",
    acts_on="local files that may be overwritten",
)
def copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a file atomically; leave remote paths and copies that must not overwrite to fairseq's own function."""
    if not overwrite or PathManager.path_requires_pathmanager(target):
        return bool(_copy_in_place(source, target, overwrite))
    copy_file(Path(source), Path(target))
    return True


@replaces(
    checkpoint_utils,
    "torch_persistent_save",
    why="after a failed write or a power failure, checkpoints are damaged or empty; those with numpy numbers, such as "
    "a correlation as the best metric, cannot be loaded",
    acts_on="all checkpoints; for remote and asynchronous ones, only their content",
)
def save_whole(obj: Any, filename: str, async_write: bool = False) -> None:
    """Save a checkpoint atomically, with up to three attempts; remote and asynchronous writes are left to fairseq."""
    obj = _without_numpy(obj)
    if async_write or not PathManager.supports_rename(filename):
        _save_otherwise(obj, filename, async_write)
        return
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with atomic_file(Path(filename)) as stream:
                torch.save(obj, stream)
            return
        except (OSError, RuntimeError):  # torch's error for a stream that fails
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECONDS)


@replaces(
    Trainer,
    "save_checkpoint",
    why="a failed update leaves crash.pt, which is as large as a checkpoint and which no program reads",
    acts_on="crash.pt",
    upstream="no: others may want this file",
)
@functools.wraps(_save_checkpoint)
def _save_except_after_crash(self: Trainer, filename: str, extra_state: Any) -> Any:
    return None if os.path.basename(filename) == "crash.pt" else _save_checkpoint(self, filename, extra_state)


def _without_numpy(state: Any) -> Any:
    """Return a checkpoint's content with Python's numbers instead of numpy's, and without meters of arrays."""
    if not isinstance(state, dict):
        return state
    state = {**state, **{name: _plain(state[name]) for name in _PARTS_WITH_METRICS if name in state}}
    saved = (state.get("extra_state") or {}).get("metrics")
    if saved:
        # Such meters are of validation, so a resumed run does not miss them.
        plain = {group: [meter for meter in meters if not _has_array(meter)] for group, meters in saved.items()}
        state["extra_state"]["metrics"] = plain
    return state


def _plain(value: Any) -> Any:
    """Copy nested dicts, lists and tuples with numpy's numbers converted; tensors and arrays are not copied."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attributes of a model's state dict
        copied.update({name: _plain(each) for name, each in value.items()})
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _has_array(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_array, value)) if isinstance(value, (list, tuple)) else isinstance(value, np.ndarray)
