"""Checkpoints are copied so that a kill, an error or a full disk leaves the file that was there before."""

import errno
import shutil

import pytest
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq_maelm.models.checkpoint_files import copy_whole

import fairseq_maelm

OLD, NEW = b"old" * 1000, b"new" * 5000


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(NEW)
    target.write_bytes(OLD)
    return source, target


def stopping_halfway(error):
    """A copy that writes half of the file and then ends as a process may end."""

    def copyfile(source, target):
        with open(source, "rb") as whole, open(target, "wb") as half:
            content = whole.read()
            half.write(content[: len(content) // 2])
        raise error

    return copyfile


class Killed(BaseException):
    """A process that is killed runs no exception handler; the nearest thing within a test."""


def test_fairseq_saves_checkpoints_through_it():
    assert fairseq_maelm.__name__ in copy_whole.__module__
    assert checkpoint_utils.PathManager.copy is copy_whole


def test_a_copy_replaces_the_old_file(files):
    source, target = files
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == NEW
    assert sorted(path.name for path in target.parent.iterdir()) == [source.name, target.name]


def test_a_kill_halfway_leaves_the_old_file(files, monkeypatch):
    source, target = files
    monkeypatch.setattr(shutil, "copyfile", stopping_halfway(Killed()))
    with pytest.raises(Killed):
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == OLD
    monkeypatch.undo()
    # What the kill has left is in nobody's way.
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == NEW
    assert not (target.parent / "checkpoint_last.pt.tmp").exists()


def test_a_full_disk_leaves_the_old_file_and_no_other(files, monkeypatch):
    source, target = files
    monkeypatch.setattr(shutil, "copyfile", stopping_halfway(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == OLD
    assert sorted(path.name for path in target.parent.iterdir()) == [source.name, target.name]
