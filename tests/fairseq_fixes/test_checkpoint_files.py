"""After a kill, an error, a full disk or with a second run, the earlier checkpoint is still there."""

import errno
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_maelm.fairseq_fixes import checkpoint_files
from fairseq_maelm.fairseq_fixes.checkpoint_files import remove_unfinished

OLD, NEW = b"old" * 1000, b"new" * 5000


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(NEW)
    target.write_bytes(OLD)
    return source, target


def stopping_halfway(error):
    """Return a copy function that writes half of the file and then raises an error."""

    def copyfile(source, target):
        with open(source, "rb") as whole, open(target, "wb") as half:
            content = whole.read()
            half.write(content[: len(content) // 2])
        raise error

    return copyfile


class Killed(BaseException):
    """Stands for a kill, which runs no exception handlers."""


def test_a_copy_replaces_the_old_file_and_a_kill_halfway_leaves_it(files, monkeypatch):
    source, target = files
    monkeypatch.setattr(shutil, "copyfile", stopping_halfway(Killed()))
    with pytest.raises(Killed):
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == OLD
    monkeypatch.undo()
    # The leftovers of the kill do not matter.
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == NEW
    assert names(target.parent) == [source.name, target.name]


def test_a_full_disk_leaves_the_old_file_and_no_other(files, monkeypatch):
    source, target = files
    monkeypatch.setattr(shutil, "copyfile", stopping_halfway(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == OLD
    assert names(target.parent) == [source.name, target.name]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_unfinished_files_of_two_runs_have_names_of_their_own(tmp_path, monkeypatch):
    """The second run saves while the first one is still writing."""
    target, first = tmp_path / "checkpoint_last.pt", {"run": 1, "weight": torch.ones(1000)}
    save = torch.save

    def save_in_the_middle(state, stream):
        save(state, stream)
        if state is first:
            checkpoint_utils.torch_persistent_save({"run": 2}, str(target))
            assert len(names(tmp_path)) == 2
            assert torch.load(target) == {"run": 2}

    monkeypatch.setattr(torch, "save", save_in_the_middle)
    checkpoint_utils.torch_persistent_save(first, str(target))
    assert torch.load(target)["run"] == 1
    assert names(tmp_path) == [target.name]


def test_a_save_that_failed_is_repeated_in_an_empty_file(tmp_path, monkeypatch):
    target, save, failures = tmp_path / "checkpoint_last.pt", torch.save, [OSError("busy"), OSError("busy")]

    def failing(state, stream):
        if failures:
            stream.write(b"half a file")
            raise failures.pop()
        save(state, stream)

    monkeypatch.setattr(torch, "save", failing)
    monkeypatch.setattr(checkpoint_files, "time", SimpleNamespace(sleep=lambda seconds: None))
    checkpoint_utils.torch_persistent_save({"run": 1}, str(target))
    assert torch.load(target) == {"run": 1}
    failures += [OSError("full")] * 3
    with pytest.raises(OSError, match="full"):
        checkpoint_utils.torch_persistent_save({"run": 2}, str(target))
    assert torch.load(target) == {"run": 1}
    assert names(tmp_path) == [target.name]


def test_what_killed_runs_left_is_removed_and_nothing_else(tmp_path):
    left = ["checkpoint_last.pt.4711-0a1b2c3d.tmp", "checkpoint_1_20.pt.tmp", "crash.pt.tmp"]
    kept = ["checkpoint_last.pt", "checkpoint_notes.tmp", "thesis.tmp", "checkpoint_best.pt.old"]
    for name in left + kept:
        (tmp_path / name).write_text("x")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_the_folder_is_made_and_tried_without_a_name_in_it(tmp_path):
    folder = tmp_path / "new" / "runs"
    checkpoint_utils.verify_checkpoint_directory(str(folder))
    assert names(folder) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file"):
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "file"))
