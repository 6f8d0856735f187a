"""A run is continued on the data and from the checkpoint that it began with, wherever they are, and on no others."""

import json
import random
import shutil
from pathlib import Path

import torch

from end_to_end.small import LAST, UPDATES, contents, cut, narrow, refusals, training
from end_to_end.toy import TOPICS, run, sentence
from fairseq_maelm.launch.run_record import RUN_FILE


def prepare(data: Path, folder: Path, labels: list[str]) -> Path:
    """Prepare a task of 16 sentences again."""
    generator = random.Random(1)
    shutil.rmtree(folder / "task", ignore_errors=True)
    lines = [f"{sentence(topic, generator)}\t{label}" for topic, label in zip(sorted(TOPICS) * 4, labels * 8)]
    (folder / "table.tsv").write_text("\n".join(lines))
    table = folder / "table.tsv"
    words = ["maelm", "prepare", "sentences", "--vocabulary", data, "--output", folder / "task"]
    run([*words, "--train", table, "--valid", table])
    return folder / "task"


def test_other_labels_at_the_same_path_are_refused(toy_data, pretrained, tmp_path):
    task, folder = prepare(toy_data, tmp_path, ["x", "y"]), tmp_path / "a run"

    def finetune(task: Path, checkpoint: Path = pretrained, check: bool = True) -> str:
        words = ["maelm", "finetune", task, "--checkpoint", checkpoint, "--output", folder, "--gpus", 0]
        return run([*words, "--epochs", 1, "--batch-size", 8], check=check)

    # The next command can be copied into a shell.
    assert f"next: maelm predict FILE --checkpoint '{folder}'" in finetune(task)
    before = contents(folder)
    # Content counts: the same task is prepared again, and both inputs are moved.
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copytree(prepare(toy_data, tmp_path, ["x", "y"]), moved / "task")
    shutil.copy(pretrained, moved / "encoder.pt")
    assert "this run is complete" in finetune(moved / "task", moved / "encoder.pt")
    prepare(toy_data, tmp_path, ["y", "x"])
    refused = finetune(task, check=False).splitlines()[-1]
    changed = f"the inputs have changed since the run in {folder} began: label/train.bin, label/valid.bin in {task}. To"
    assert refused.startswith(f"maelm finetune: error: {changed}") and "--replace to start over" in refused
    state = torch.load(moved / "encoder.pt")
    state["model"]["encoder.embed_tokens.weight"][5] += 1
    torch.save(state, moved / "encoder.pt")
    refused = finetune(moved / "task", moved / "encoder.pt", check=False).splitlines()[-1]
    assert f"began: {moved / 'encoder.pt'}. To" in refused and contents(folder) == before


def test_fairseq_train_refuses_another_text(toy_data, data, finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    other = cut(toy_data, tmp_path / "other", 160, first=200)
    for updates in (UPDATES, UPDATES + 2):  # complete, and interrupted
        [line] = refusals(run(narrow(other, folder, updates=updates), check=False))
        assert f"the inputs have changed since the run in {folder} began: train.bin, train.idx" in line
        assert contents(folder) == contents(finished)
    run(narrow(other, folder, "--reset-dataloader", updates=16))
    [line] = refusals(run(narrow(data, folder, updates=18), check=False))
    assert "train.bin" in line
    # Version 0.3 recorded the inputs in its checkpoints, and older ones nowhere.
    inputs = json.loads((folder / RUN_FILE).read_text())["inputs"]
    (folder / RUN_FILE).unlink()
    state = torch.load(folder / LAST)
    torch.save({**state, "task_state": {"inputs": inputs}}, folder / LAST)
    [line] = refusals(run(narrow(data, folder, updates=18), check=False))
    assert "train.bin" in line
    torch.save(state, folder / LAST)
    run(narrow(data, folder, updates=18))
    assert json.loads((folder / RUN_FILE).read_text())["inputs"] != inputs


def test_general_text_counts_too(toy_data, data, tmp_path):
    general = cut(toy_data, tmp_path / "general", 20)
    shutil.copy(toy_data / "valid.bin", general), shutil.copy(toy_data / "valid.idx", general)
    words = training(data, tmp_path / "run", "--general-data", general, "--general-ratio", 0.1)
    run([*words, "--max-update", 1])
    cut(toy_data, general, 20, first=30)
    [line] = refusals(run([*words, "--max-update", 2], check=False))
    assert f"began: train.bin, train.idx in {general}. Give the inputs" in line
