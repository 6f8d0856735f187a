"""The files that are checked are those that fairseq builds; tests/robustness/test_hostile.py has hostile contents."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, tasks

import fairseq_maelm
from fairseq_maelm.checkpoints.plain_data import CheckpointError

fairseq_maelm.register()


def save(path: Path, task: str) -> None:
    """Write a checkpoint that names a task."""
    history = [{"num_updates": 1, "optimizer_name": "Adam", "lr_scheduler_state": {}}]
    config = {"task": {"_name": task}, "model": {"_name": "roberta"}}
    extra = {"train_iterator": {"epoch": 1}}
    torch.save({"model": {}, "cfg": config, "optimizer_history": history, "extra_state": extra}, path)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the tasks that fairseq would build, and build none."""
    names: list[str] = []

    def setup_task(config: Any, **_: Any) -> None:
        names.append(config["_name"])
        raise InterruptedError

    monkeypatch.setattr(tasks, "setup_task", setup_task)
    return names


@pytest.mark.parametrize(
    "name, options",
    [
        ("best-shard0.pt", {}),  # fairseq prefers it to best.pt
        ("best_a-shard0.pt", {"suffix": "_a"}),
        ("best_a.pt", {"suffix": "_a"}),
        ("best_part0.pt", {"num_shards": 2, "strict": False}),
    ],
)
def test_the_file_that_fairseq_reads_is_checked(
    tmp_path: Path, built: list[str], name: str, options: dict[str, Any]
) -> None:
    save(tmp_path / "best.pt", "masked_lm")
    save(tmp_path / "best_part1.pt", "masked_lm")
    save(tmp_path / name, "translation")
    with pytest.raises(CheckpointError, match=rf"{name} is a checkpoint of fairseq's task 'translation'"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "best.pt")], **options)
    assert built == []


def test_a_suffix_is_part_of_the_name(tmp_path: Path, built: list[str]) -> None:
    """fairseq-train --checkpoint-suffix writes such files, and fairseq-validate takes the same option."""
    save(tmp_path / "last_a.pt", "masked_lm")
    with pytest.raises(InterruptedError):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "last.pt")], suffix="_a")
    assert built == ["masked_lm"]
