"""Checkpoint files are whole or absent, also when a run is killed while it writes them, or two runs write at once.

Reason: fairseq writes the first file of a save under another name and renames it; the other files, among them
checkpoint_last.pt, it copies in place. Killed in between, it would leave a short checkpoint_last.pt that no run can
resume from. The other name is the same for all runs, so that two runs of one folder write into one another's file, and
a write that failed is repeated behind what is there already. Here each unfinished file has a name of its own; what
killed runs leave of them is removed by the next run of the folder.
Test: tests/fairseq_fixes/test_checkpoint_files.py.
"""

import contextlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

_ATTEMPTS, _PAUSE_SECONDS = 3, 2.5
# Of this module, and of fairseq without it.
_UNFINISHED = re.compile(r"(?:checkpoint.*|crash)\.pt(?:\.\d+-[0-9a-f]{8})?\.tmp")

_copy_in_place = PathManager.copy
_save_otherwise = checkpoint_utils.torch_persistent_save


@contextlib.contextmanager
def _unfinished(target: str) -> Iterator[str]:
    """Yield a name for a file that becomes ``target`` when the block ends well, and is removed when it does not."""
    name = f"{target}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        yield name
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)
        raise


def copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a file so that ``target`` is at every moment the old file or the whole new one, as ``PathManager.copy``.

    Paths that are not local, and copies that must not overwrite, are left to fairseq.
    """
    if not overwrite or PathManager.path_requires_pathmanager(target):
        return bool(_copy_in_place(source, target, overwrite))
    with _unfinished(target) as name:
        if not _copy_in_place(source, name, overwrite=True):
            raise OSError(f"{source} could not be copied to {target}")
    return True


def save_whole(obj: Any, filename: str, async_write: bool = False) -> None:
    """Save a checkpoint so that ``filename`` is at every moment the old file or the whole new one, in three attempts.

    Files that are not local, and writing in the background, are left to fairseq.
    """
    if async_write or not PathManager.supports_rename(filename):
        _save_otherwise(obj, filename, async_write)
        return
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _unfinished(filename) as name, open(name, "wb") as stream:
                torch.save(obj, stream)
            return
        except Exception:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECONDS)


def verify_folder(save_dir: str) -> None:
    """Make the save folder and try to make a file in it; fairseq's test file has one name for all runs."""
    if not os.path.exists(save_dir):
        os.makedirs(save_dir, exist_ok=True)
    with tempfile.TemporaryFile(dir=save_dir):
        return


def remove_unfinished(folder: Path) -> None:
    """Remove what killed runs have left of unfinished files; only for a run that has the folder to itself."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_whole_checkpoints() -> None:
    """Make fairseq write checkpoints by the functions of this module."""
    PathManager.copy = staticmethod(copy_whole)
    checkpoint_utils.torch_persistent_save = save_whole
    checkpoint_utils.verify_checkpoint_directory = verify_folder
