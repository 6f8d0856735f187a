"""Checkpoint files are whole or absent, also when a run is killed while it writes them.

fairseq writes the first file of a save under another name and renames it; the other files, checkpoint_last.pt among
them, it copies in place. Killed in between, it would leave a short checkpoint_last.pt that no run can resume from.
"""

import os

from fairseq.file_io import PathManager

_copy_in_place = PathManager.copy


def copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a file so that ``target`` is at every moment the old file or the whole new one.

    Stands in for fairseq's ``PathManager.copy`` and takes its arguments. Paths that are no local files, and copies that
    must not overwrite, are left to fairseq.

    Returns:
        whether the file was copied.
    """
    if not overwrite or PathManager.path_requires_pathmanager(target):
        return bool(_copy_in_place(source, target, overwrite))
    # fairseq's name for unfinished files: the next save replaces what a killed one has left.
    unfinished = target + ".tmp"
    try:
        if not _copy_in_place(source, unfinished, overwrite=True):
            return False
        os.replace(unfinished, target)
    except OSError:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise
    return True


def write_whole_checkpoints() -> None:
    """Make fairseq copy checkpoints by ``copy_whole`` from now on, in this process."""
    PathManager.copy = staticmethod(copy_whole)
