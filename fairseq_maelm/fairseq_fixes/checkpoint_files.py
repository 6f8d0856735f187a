"""Write checkpoint files atomically, so that neither a killed run nor a second run leaves a broken file.

Reason: fairseq writes the first file of a save under a temporary name and renames it, but copies the other files, such
as checkpoint_last.pt, in place. A kill during the copy leaves a truncated checkpoint_last.pt from which no run can
resume. fairseq never calls fsync, so after a power failure a renamed file may be empty. The temporary name is the same
for all runs, so two runs in one folder write to the same file, and a retry after a failed write appends to the partial
data. ``files.atomic`` has none of these faults, and the next run removes its leftover files.
When an update fails, fairseq saves ``crash.pt``, of which no program makes use; it is not written.
Test: tests/fairseq_fixes/test_checkpoint_files.py.
"""

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.numpy_values import without_numpy
from fairseq_maelm.fairseq_fixes.replacements import replaces
from fairseq_maelm.files.atomic import atomic_file, copy_file

_ATTEMPTS, _PAUSE_SECONDS = 3, 2.5

_copy_in_place = PathManager.copy
_save_otherwise = checkpoint_utils.torch_persistent_save
_save_checkpoint = Trainer.save_checkpoint


@replaces(PathManager, "copy")
def copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a file atomically, in place of ``PathManager.copy``.

    Remote paths and copies that must not overwrite are left to fairseq.
    """
    if not overwrite or PathManager.path_requires_pathmanager(target):
        return bool(_copy_in_place(source, target, overwrite))
    copy_file(Path(source), Path(target))
    return True


@replaces(checkpoint_utils, "torch_persistent_save")
def save_whole(obj: Any, filename: str, async_write: bool = False) -> None:
    """Save a checkpoint atomically, with up to three attempts; remote and asynchronous writes are left to fairseq."""
    obj = without_numpy(obj)
    if async_write or not PathManager.supports_rename(filename):
        _save_otherwise(obj, filename, async_write)
        return
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with atomic_file(Path(filename)) as stream:
                torch.save(obj, stream)
            return
        except Exception:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECONDS)


@replaces(Trainer, "save_checkpoint")
@functools.wraps(_save_checkpoint)
def _save_except_after_crash(self: Trainer, filename: str, extra_state: Any) -> Any:
    return None if os.path.basename(filename) == "crash.pt" else _save_checkpoint(self, filename, extra_state)


@replaces(checkpoint_utils, "verify_checkpoint_directory")
def verify_folder(save_dir: str) -> None:
    """Create the save folder and test whether it is writable; unlike in fairseq, the test file's name is unique."""
    if not os.path.exists(save_dir):
        os.makedirs(save_dir, exist_ok=True)
    with tempfile.TemporaryFile(dir=save_dir):
        return
