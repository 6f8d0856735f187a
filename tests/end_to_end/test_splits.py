"""What is trained on and what is measured is said by --train-subset and --valid-subset, not by a split's name."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from end_to_end.small import LAST, NARROW, cut, differences, results, training, updates
from end_to_end.toy import run, train_log


def copies(folder: Path, old: str, new: str) -> None:
    for suffix in (".bin", ".idx"):
        shutil.copy(folder / f"{old}{suffix}", folder / f"{new}{suffix}")


def measured(output: str, split: str) -> list[dict[str, Any]]:
    """What each validation on a split has logged, without the split's name and times."""
    prefix = f"{split}_"
    entries = [entry for entry in train_log(output) if entry["split"] == split and f"{prefix}train_wall" not in entry]
    wanted = ("loss", "accuracy", "masked", "num_updates")
    return [{name: entry[prefix + name] for name in wanted} for entry in entries]


def test_a_renamed_split_is_trained_on_like_train(toy_data, tmp_path):
    """With everything that training alone does: shards, general text, a schedule, and frequencies of its text."""
    folders = [cut(toy_data, tmp_path / name, lines=lines, first=lines) for name, lines in (("a", 36), ("b", 50))]
    for folder in folders:
        copies(folder, "train", "corpus")
    options = [*NARROW, "--general-data", toy_data, "--general-ratio", 0.25, "--mask-prob-end", 0.3]
    options += ["--initial-output-bias", "frequencies", "--batch-size", 8, "--max-update", 20]
    runs = {}
    for split in ("train", "corpus"):
        data = ":".join(str(folder) for folder in folders)
        runs[split] = updates(run(training(data, tmp_path / split, *options, "--train-subset", split)))
        for folder in folders:
            (folder / "train.bin").unlink(missing_ok=True)
    assert runs["train"] == runs["corpus"] and runs["train"][-1]["train_num_updates"] == 20
    assert differences(results(tmp_path / "train" / LAST), results(tmp_path / "corpus" / LAST)) == []


def test_the_training_split_is_measured_like_any_other(toy_data, tmp_path):
    """The same losses as of a copy that is only measured, in training and by fairseq-validate; training stays."""
    data = cut(toy_data, tmp_path / "data", lines=40)
    copies(data, "train", "other")
    options = [*NARROW, "--mask-prob", 0.4, "--valid-mask-prob", 0.2, "--max-epoch", 2, "--batch-size", 8]
    command = [word for word in training(data, tmp_path, *options) if word != "--disable-validation"]
    found = {}
    for split in ("train", "other"):
        output = run([*command, "--valid-subset", split, "--save-dir", tmp_path / split])
        found[split] = measured(output, split)
    assert found["train"] == found["other"] and len(found["train"]) == 2
    assert found["train"][0]["masked"] == pytest.approx(20, abs=1)
    assert differences(results(tmp_path / "train" / LAST), results(tmp_path / "other" / LAST)) == []
    validate = ["fairseq-validate", data, "--task", "maelm", "--path", tmp_path / "train" / LAST, "--cpu"]
    (entry,) = train_log(run([*validate, "--valid-subset", "train", "--batch-size", 8, "--log-format", "json"]))
    assert entry["train_loss"] == found["train"][-1]["loss"]


def test_validation_cut_short_measures_and_keeps_the_same_part(toy_data, tmp_path):
    """The bound on the general loss compares with the same part, also before the first update."""
    options = [*NARROW, "--lr", 0, "--max-update", 2, "--validate-interval-updates", 1, "--max-valid-steps", 2]
    options += ["--general-data", toy_data, "--general-loss-bound", 0.001, "--valid-subset", "valid,general"]
    command = [word for word in training(toy_data, tmp_path, *options) if word != "--disable-validation"]
    output = run(command)
    assert "stopping training: the general loss" not in output
    general = measured(output, "general")
    assert len(general) == 2 and general[0]["loss"] == general[1]["loss"]
    assert f"general loss at the start: {general[0]['loss']:.3f} bits" in output
    whole = [*command[: command.index("--max-valid-steps")], *command[command.index("--max-valid-steps") + 2 :]]
    assert "resume with the same --max-valid-steps" in run([*whole, "--max-update", 3], check=False)
