"""Validation measures the model alone: not how batches are cut, not the seed, not the epoch; nor who runs it."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, utils

from end_to_end.small import cut, differences, results, training, updates
from end_to_end.toy import TINY_TRAINING, losses, run, train_log

UPDATES, EVERY = 12, 4
METRICS = ("loss", "ppl", "accuracy", "masked")


def validations(output: str) -> list[dict[str, Any]]:
    return [entry for entry in train_log(output) if entry["split"] == "valid"]


@pytest.fixture(scope="module")
def trained(toy_data, tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A checkpoint, and what the validations during training logged."""
    folder = tmp_path_factory.mktemp("trained")
    intervals = ["--max-update", UPDATES, "--validate-interval-updates", EVERY]
    output = run(["fairseq-train", toy_data, *TINY_TRAINING, *intervals, "--save-dir", folder])
    return folder / "checkpoint_last.pt", validations(output)


def test_training_validates_and_keeps_the_best(trained):
    checkpoint, logged = trained
    assert [entry["valid_num_updates"] for entry in logged] == [4, 8, 12]
    assert [entry["valid_loss"] for entry in logged] == sorted([entry["valid_loss"] for entry in logged], reverse=True)
    assert (checkpoint.parent / "checkpoint_best.pt").exists()


@pytest.mark.parametrize("options", [["--batch-size", 16], ["--max-tokens", 500, "--seed", 7, "--num-workers", 1]])
def test_fairseq_validate_gives_the_metrics_of_training(toy_data, trained, options):
    checkpoint, during_training = trained
    command = ["fairseq-validate", toy_data, "--task", "maelm", "--path", checkpoint, "--cpu", "--log-format", "json"]
    (logged,) = validations(run([*command, *options]))
    for metric in METRICS:
        assert logged[f"valid_{metric}"] == during_training[-1][f"valid_{metric}"], metric


def totals(checkpoint: Path, data: Path, epoch: int = 1, overrides: Any = None, **batching: Any) -> dict[str, float]:
    """Metrics of the validation split summed over its batches, with all digits."""
    loaded = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data), **(overrides or {})})
    (model,), config, task = loaded
    criterion = task.build_criterion(config.criterion)
    task.load_dataset("valid", epoch=epoch)
    iterator = task.get_batch_iterator(
        task.dataset("valid"),
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        required_batch_size_multiple=8,
        epoch=epoch,
        **batching,
    ).next_epoch_itr(shuffle=False)
    sums: dict[str, float] = {}
    for batch in iterator:
        _, _, metrics = task.valid_step(batch, model.eval(), criterion.eval())
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    assert sums["nsentences"] == len(task.dataset("valid"))
    return sums


@pytest.mark.parametrize(
    "other",
    [
        {"max_sentences": 5},
        {"max_tokens": 64},
        {"max_tokens": 2000},
        {"max_sentences": 16, "epoch": 3},
        {"max_sentences": 16, "seed": 5, "overrides": {"seed": 5}},
    ],
)
def test_validation_loss_does_not_depend_on_batches_epoch_or_seed(toy_data, trained, other):
    checkpoint, during_training = trained
    expected = totals(checkpoint, toy_data, max_sentences=16)
    actual = totals(checkpoint, toy_data, **other)
    for name in ("sample_size", "ntokens", "nsentences", "ncorrect"):
        assert actual[name] == expected[name], name
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    bits = expected["loss"] / expected["sample_size"] / torch.tensor(2.0).log().item()
    assert bits == pytest.approx(during_training[-1]["valid_loss"], abs=6e-4)


def test_validation_does_not_depend_on_the_dropout_of_training(toy_data, trained):
    expected = totals(trained[0], toy_data, max_sentences=16)
    actual = totals(trained[0], toy_data, max_sentences=16, overrides={"dropout": 0.9, "attention_dropout": 0.9})
    assert actual == expected


# --initial-output-bias frequencies: training starts where word frequencies alone lead, and only training does


def test_a_run_starts_at_the_entropy_of_the_frequencies(toy_data, tmp_path):
    still = ["--lr", "0", "--warmup-updates", "0", "--max-update", "1", "--protect-special-tokens"]
    command = ["fairseq-train", toy_data, *TINY_TRAINING, *still]
    zeros = losses(run([*command, "--no-save"]), "valid")[-1]
    options = ["--initial-output-bias", "frequencies", "--save-dir", tmp_path]
    frequencies = losses(run([*command, *options]), "valid")[-1]

    text = np.fromfile(toy_data / "train.bin", dtype=np.uint16)
    shares = np.bincount(text[text > 3]) / (text > 3).sum()
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    # What the random weights add to the logits costs a little.
    assert entropy - 0.1 < frequencies < entropy + 0.3
    assert zeros > frequencies + 1.0

    bias = torch.load(tmp_path / "checkpoint_last.pt")["model"]["lm_head.bias"]
    assert math.isclose(bias.double().exp().sum().item(), 1.0, abs_tol=1e-5)
    # Loading reads no training text: the folder of a reader may hold the dictionary alone.
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (tmp_path / name).write_bytes((toy_data / name).read_bytes())
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "checkpoint_last.pt")], {"data": str(tmp_path)}
    )
    assert torch.equal(model.lm_head.bias, bias)


# Masking rates


RATES = ["--mask-prob", 0.5, "--mask-prob-end", 0.1, "--update-freq", 2]


def test_the_rate_falls_and_a_resumed_run_goes_on_with_it(toy_data, tmp_path):
    """Five updates of two batches make an epoch, so the seventh of twelve is made in the middle of the second."""
    data = cut(toy_data, tmp_path / "data", 160)
    options = [*RATES, "--max-update", 12]
    whole = [*options, "--num-workers", 2, "--save-interval-updates", 7]
    output = run(training(data, tmp_path / "whole", *whole))
    shares = [entry["masked"] for entry in updates(output) if entry["split"] == "train_inner"]
    assert shares == pytest.approx([50 - 40 * number / 12 for number in range(12)], abs=2.0)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint_2_7.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    again = updates(run(training(data, tmp_path / "resumed", *options, "--data-buffer-size", 0)))
    assert again[0]["num_updates"] == 8 and again == updates(output)[-len(again) :]
    last = (results(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "resumed"))
    assert differences(*last) == []


def test_validation_predicts_the_fraction_of_the_end(toy_data, tmp_path):
    """So that its losses compare with those of a run at that constant rate."""
    command = [*training(toy_data, tmp_path, "--max-update", 1, "--lr", 0, *RATES)]
    command.remove("--disable-validation")
    (entry,) = (entry for entry in train_log(run(command)) if entry["split"] == "valid")
    assert float(entry["valid_masked"]) == pytest.approx(10.0, abs=0.5)
