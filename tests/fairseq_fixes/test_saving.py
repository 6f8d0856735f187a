"""After a kill, an error, a full disk or a power failure, the earlier checkpoint is still there; all can be loaded."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.logging import metrics

import fairseq_maelm
from fairseq_maelm.checkpoints.integrity import find_damage
from fairseq_maelm.fairseq_fixes import saving
from fairseq_maelm.files.atomic import remove_partial_files

fairseq_maelm.register()
OLD, NEW = {"run": 1}, {"run": 2, "weight": torch.ones(1000)}
LAST = "checkpoint_last.pt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.save(OLD, tmp_path / LAST)
    torch.save(NEW, tmp_path / "checkpoint2.pt")
    monkeypatch.setattr(saving, "time", SimpleNamespace(sleep=lambda seconds: None))
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


def test_numbers_become_python_s_and_meters_of_arrays_are_left_out(tmp_path: Path) -> None:
    metrics.reset()
    with metrics.aggregate("valid"):
        metrics.log_scalar("loss", torch.tensor(2.0), round=3)
        metrics.log_scalar("share", np.float32(0.5))
        metrics.log_scalar("_bleu_counts", np.array([3, 1, 0, 0]))
    average = {"weight": torch.ones(3)}
    best = np.float64(61.5)
    state: dict[str, Any] = {
        "model": {"weight": torch.zeros(3)},
        "optimizer_history": [{"num_updates": 4, "lr_scheduler_state": {"best": best, "last_epoch": 1}}],
        "last_optimizer_state": {"state": {}, "param_groups": []},
        "extra_state": {
            "train_iterator": {"epoch": 2, "iterations_in_epoch": 0},
            "metrics": metrics.state_dict(),
            "early_stopping": {"best": best, "num_runs": 0},
            "val_loss": best,
            "best": best,
            "ema": average,
        },
    }
    path = tmp_path / "checkpoint_last.pt"
    checkpoint_utils.torch_persistent_save(state, str(path))
    assert find_damage(path) is None
    assert state["extra_state"]["best"] is best, "the caller's state is not changed"
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    extra = loaded["extra_state"]
    places = extra, extra["early_stopping"], loaded["optimizer_history"][0]["lr_scheduler_state"]
    assert [(type(each["best"]), each["best"]) for each in places] == [(float, 61.5)] * 3
    assert torch.equal(extra["ema"]["weight"], average["weight"])
    metrics.reset()
    metrics.load_state_dict(extra["metrics"])
    assert metrics.get_smoothed_values("valid") == {"loss": 2.0, "share": 0.5}
