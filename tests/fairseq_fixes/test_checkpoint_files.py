"""After a kill, an error, a full disk or a power failure, the earlier checkpoint is still there."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_maelm.fairseq_fixes import checkpoint_files
from fairseq_maelm.files.atomic import remove_partial_files

OLD, NEW = {"run": 1}, {"run": 2, "weight": torch.ones(1000)}
LAST = "checkpoint_last.pt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.save(OLD, tmp_path / LAST)
    torch.save(NEW, tmp_path / "checkpoint2.pt")
    monkeypatch.setattr(checkpoint_files, "time", SimpleNamespace(sleep=lambda seconds: None))
    return tmp_path


def save(folder: Path) -> None:
    checkpoint_utils.torch_persistent_save(NEW, str(folder / LAST))


def copy(folder: Path) -> None:
    assert PathManager.copy(str(folder / "checkpoint2.pt"), str(folder / LAST), overwrite=True)


def fail_halfway(monkeypatch: pytest.MonkeyPatch, end: Callable[[], Any]) -> None:
    """Let saving and copying write half of a file and then end in another way."""

    def write(content: Any, stream: BinaryIO, *_: Any) -> None:
        stream.write(b"half")
        stream.flush()
        end()

    monkeypatch.setattr(torch, "save", write)
    monkeypatch.setattr(shutil, "copyfileobj", write)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", [save, copy])
def test_a_kill_or_a_full_disk_halfway_leaves_the_old_file(write, folder, monkeypatch):
    with monkeypatch.context() as killing:
        fail_halfway(killing, lambda: os._exit(9))
        if not (child := os.fork()):
            write(folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert torch.load(folder / LAST) == OLD and len(names(folder)) == 3
    remove_partial_files(folder)  # as the next run in the folder does

    def fill_disk() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        fail_halfway(full, fill_disk)
        with pytest.raises(OSError, match="No space left"):
            write(folder)
    assert torch.load(folder / LAST) == OLD
    write(folder)
    assert torch.load(folder / LAST)["run"] == 2
    assert names(folder) == ["checkpoint2.pt", LAST]


@pytest.mark.parametrize("write", [save, copy])
def test_content_and_name_reach_the_disk_in_this_order(write, folder, monkeypatch):
    done: list[str] = []
    for name in ("fsync", "replace"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, call=function: (done.append(name), call(*args)))
    write(folder)
    assert done == ["fsync", "replace", "fsync"]


def test_a_save_that_failed_twice_is_repeated_in_an_empty_file(folder, monkeypatch):
    failures, whole = [OSError("busy"), OSError("busy")], torch.save

    def failing(state, stream):
        if failures:
            stream.write(b"half a file")
            raise failures.pop()
        whole(state, stream)

    monkeypatch.setattr(torch, "save", failing)
    save(folder)
    assert torch.load(folder / LAST)["run"] == 2


def test_the_folder_is_made_and_tried_without_a_name_in_it(tmp_path):
    folder = tmp_path / "new" / "runs"
    checkpoint_utils.verify_checkpoint_directory(str(folder))
    assert names(folder) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file"):
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path / "file"))
