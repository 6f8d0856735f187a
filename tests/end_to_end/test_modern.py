"""A model of ModernBERT's layer through fairseq-train, in this process: it learns, resumes and is fine-tuned."""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fairseq_cli.train
import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from end_to_end.toy import TINY_TRAINING, USER_DIR
from fairseq_maelm.models.checkpoint_model import build_model
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.modules.heads import ModernClassificationHead

OPTIONS = [word if word != "maelm_tiny" else "maelm_modern_tiny" for word in TINY_TRAINING]
SMALL = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48, "--embedding-init-std", 0.1, "--init-std", 0.1]


def write_split(prefix: Path, rows: Iterable[list[int]]) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for row in rows:
        builder.add_item(torch.tensor(row))
    builder.finalize(f"{prefix}.idx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in which each token is the next number."""
    root = tmp_path_factory.mktemp("modern")
    dictionary = Dictionary()
    for number in range(20):
        dictionary.add_symbol(f"{number}")
    dictionary.save(str(root / "dict.txt"))
    generator = np.random.default_rng(0)
    lines = [[4 + (start + step) % 20 for step in range(12)] + [2] for start in generator.integers(0, 20, 320)]
    for split, part in (("train", lines[:256]), ("valid", lines[256:])):
        write_split(root / split, (row for line in part for row in (line, [2])))
    return root


def train(*words: Any) -> None:
    """Run fairseq-train in this process."""
    arguments = sys.argv
    sys.argv = ["fairseq-train", "--user-dir", str(USER_DIR), *map(str, words)]
    try:
        fairseq_cli.train.cli_main()
    finally:
        sys.argv = arguments


def pretrain(folder: Path, save: str, updates: int, *words: Any) -> Path:
    train(folder, *OPTIONS, *SMALL, "--save-dir", folder / save, "--max-update", updates, *words)
    return folder / save / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Path:
    return pretrain(folder, "whole", 24, "--lr", 1e-2)


def test_it_learns_and_resumes_as_if_it_had_never_stopped(folder: Path, pretrained: Path) -> None:
    stopped = pretrain(folder, "stopped", 8, "--lr", 1e-2)
    first = read_checkpoint(stopped).history["val_loss"]
    resumed = read_checkpoint(pretrain(folder, "stopped", 24, "--lr", 1e-2))
    whole = read_checkpoint(pretrained)
    assert whole.history["val_loss"] < first - 0.5, "bits"
    assert all(torch.equal(resumed.weights[name], weight) for name, weight in whole.weights.items())
    assert whole.encoder_options["layer"] == "modern" and whole.encoder_options["positions"] == "rotary"
    assert whole.encoder_options["arch"] == "maelm_modern_tiny"


def test_it_is_fine_tuned_by_its_checkpoint_alone(folder: Path, pretrained: Path) -> None:
    """Stock sentence_prediction tells texts that count up from those that count down."""
    data, generator = folder / "labeled", np.random.default_rng(1)
    labels = Dictionary()
    for name in ("down", "up"):
        labels.add_symbol(name)
    for part in ("input0", "label"):
        (data / part).mkdir(parents=True)
    shutil.copy(folder / "dict.txt", data / "input0")
    labels.save(str(data / "label" / "dict.txt"))
    for split, count in (("train", 128), ("valid", 32)):
        chosen = generator.integers(0, 2, count).tolist()
        starts = generator.integers(0, 20, count).tolist()
        texts = [[4 + (start + (2 * up - 1) * step) % 20 for step in range(8)] for start, up in zip(starts, chosen)]
        write_split(data / "input0" / split, ([*text, 2] for text in texts))
        write_split(data / "label" / split, ([labels.index(labels[4 + up]), 2] for up in chosen))
    train(
        *[data, "--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", 2],
        *["--init-token", 0, "--separator-token", 2, "--arch", "maelm", "--finetune-from-model", pretrained],
        *["--optimizer", "adam", "--lr-scheduler", "fixed", "--lr", 3e-3, "--batch-size", 16, "--max-epoch", 16],
        *["--cpu", "--num-workers", 0, "--seed", 1, "--no-epoch-checkpoints", "--save-dir", folder / "tuned"],
        *["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"],
    )
    tuned = read_checkpoint(folder / "tuned" / "checkpoint_best.pt")
    assert tuned.history["best"] > 80, "percent, where guessing gives 50"
    assert tuned.encoder_options["layer"] == "modern" and not tuned.predicts_masked_tokens
    model = build_model(tuned, read_dictionary(folder))
    assert isinstance(model.classification_heads["sentence_classification_head"], ModernClassificationHead)


def read_dictionary(folder: Path) -> Dictionary:
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    return dictionary
