"""From labeled files to labeled files: preparation, the recipe, its resumption, ranks, and `maelm predict`."""

import random
import shlex
from pathlib import Path

import pytest
import torch

from end_to_end.small import assert_equal_end
from end_to_end.test_distributed import run_ranks
from end_to_end.toy import TOPICS, losses, metrics_in, run, sentence
from fairseq_maelm.cli import main

KINDS = ("WHO", "TOOL", None, "PLACE", None)
ENTITY = {word: KINDS[role] for words in TOPICS.values() for role in range(5) for word in words[role]}


def write_entities(path: Path, sentences: int, seed: int) -> None:
    """Toy sentences as two columns, with IOB1 labels, a document's start, and sentences of two windows."""
    generator = random.Random(seed)
    lines = ["-DOCSTART- O", ""]
    for number in range(sentences):
        text = " ".join(sentence(generator.choice(sorted(TOPICS)), generator) for _ in range(1 + (number % 8 == 0) * 6))
        for word in text.split():
            kind = ENTITY.get(word.strip(".;"))
            lines.append(f"{word} {f'I-{kind}' if kind else 'O'}")
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")


def finetuning(task: Path, checkpoint: Path, save_dir: Path, lr: float = 2e-3) -> list[object]:
    words = ["maelm", "finetune", task, "--checkpoint", checkpoint, "--output", save_dir, "--gpus", 0]
    return [*words, "--lr", lr, "--epochs", 3, "--batch-size", 16, "--"]


@pytest.mark.slow
def test_tagging(toy_data, pretrained, tmp_path, capsys):
    for split, sentences, seed in (("train", 150, 1), ("valid", 24, 2)):
        write_entities(tmp_path / split, sentences, seed)
    task = tmp_path / "task"
    files = ["--train", tmp_path / "train", "--valid", tmp_path / "valid", "--output", task]
    assert "the labels are IOB1" in run(["maelm", "prepare", "tagging", "--vocabulary", toy_data, *files])

    output = run(finetuning(task, pretrained, tmp_path / "whole"))
    assert "dropping decoder, lm_head of the checkpoint" in output
    f1 = losses(output, "valid", "f1")
    assert len(f1) == 3
    assert max(f1) > 80, "words decide their labels"

    # Stopped in the middle of the second epoch, and the same command again.
    parts = finetuning(task, pretrained, tmp_path / "parts")
    capsys.readouterr()
    main([str(word) for word in [*parts[1:-1], "--dry-run"]])
    printed = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    run([*printed[printed.index("fairseq-train") :], "--max-update", 14])
    resumed = run(parts)
    assert "Loaded checkpoint" in resumed and "loading pretrained model" not in resumed
    assert_equal_end(tmp_path / "parts", tmp_path / "whole")
    assert losses(resumed, "valid", "f1")[-1] == f1[-1]

    # Another run's head may have had other labels. A learning rate of zero leaves what was loaded.
    again = run(finetuning(task, tmp_path / "whole" / "checkpoint_last.pt", tmp_path / "again", lr=0.0))
    assert "head 'tagging_head' of the checkpoint (7 outputs) is dropped: the model has a new one" in again
    old, new = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "again"))
    assert {name for name in old if not torch.equal(old[name], new[name])} == {
        f"classification_heads.tagging_head.out_proj.{kind}" for kind in ("weight", "bias")
    }

    best = tmp_path / "whole" / "checkpoint_best.pt"
    validation = ["fairseq-validate", task, "--path", best, "--task", "maelm_tagging", "--criterion", "maelm_tagging"]
    options = ["--tokens-per-sample", 96, "--window-overlap", 24, "--batch-size", 5, "--cpu", "--num-workers", 0]
    ranks = run_ranks([*validation, *options, "--log-format", "json"], 2, tmp_path)
    assert losses(ranks, "valid", "f1") == [max(f1)]
    label(task, best, tmp_path, max(f1))


def label(task: Path, checkpoint: Path, folder: Path, f1: float) -> None:
    """Label the validation file and compare the metrics with those of validation."""
    command = ["maelm", "predict", "--checkpoint", checkpoint]
    given, predicted = folder / "valid", folder / "predicted"
    said = run([*command, given, "--output", predicted])
    assert metrics_in(said)["f1"] == pytest.approx(f1)
    lines, others = given.read_text().split("\n"), predicted.read_text().split("\n")
    assert [line.split(" ")[0] for line in lines] == [line.split(" ")[0] for line in others]
    assert [line == "" for line in lines] == [line == "" for line in others] and others[0] == "-DOCSTART- O"
    text = folder / "text.txt"
    text.write_text("The sailor rows, patiently.\n\n", encoding="utf-8")
    words = run([*command, text]).splitlines()[-2:]
    assert [part.rpartition("/")[0] for part in words[0].split()] == ["The", "sailor", "rows", ",", "patiently", "."]
    assert words[1] == ""
    assert torch.load(checkpoint)["model"]["classification_heads.tagging_head.out_proj.weight"].shape == (7, 128)
