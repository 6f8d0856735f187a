"""Validation measures the model alone: not how batches are cut, not the seed, not the epoch; nor who runs it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, utils

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


def test_fairseq_validate_gives_the_metrics_of_training(toy_data, trained):
    checkpoint, logged = trained
    assert [entry["valid_num_updates"] for entry in logged] == [4, 8, 12]
    assert [entry["valid_loss"] for entry in logged] == sorted([entry["valid_loss"] for entry in logged], reverse=True)
    assert (checkpoint.parent / "checkpoint_best.pt").exists()
    command = ["fairseq-validate", toy_data, "--task", "maelm", "--path", checkpoint, "--cpu", "--log-format", "json"]
    (again,) = validations(run([*command, "--max-tokens", 500, "--seed", 7, "--num-workers", 1]))
    for metric in METRICS:
        assert again[f"valid_{metric}"] == logged[-1][f"valid_{metric}"], metric


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


@pytest.fixture(scope="module")
def expected(toy_data, trained) -> dict[str, float]:
    """The metrics of batches of 16."""
    return totals(trained[0], toy_data, max_sentences=16)


@pytest.mark.parametrize(
    "other",
    [
        {"max_sentences": 5},
        {"max_tokens": 64},
        {"max_tokens": 2000},
        {"max_sentences": 16, "epoch": 3, "seed": 5, "overrides": {"seed": 5}},
        {"max_sentences": 16, "overrides": {"dropout": 0.9, "attention_dropout": 0.9}},
    ],
    ids=str,
)
def test_validation_loss_depends_on_the_model_alone(toy_data, trained, expected, other):
    actual = totals(trained[0], toy_data, **other)
    for name in ("sample_size", "ntokens", "nsentences", "ncorrect"):
        assert actual[name] == expected[name], name
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    bits = expected["loss"] / expected["sample_size"] / math.log(2)
    assert bits == pytest.approx(trained[1][-1]["valid_loss"], abs=6e-4)


# --initial-output-bias frequencies: training starts where word frequencies alone lead, and only training does


def test_a_run_starts_at_the_entropy_of_the_frequencies(toy_data, tmp_path):
    still = ["--lr", "0", "--warmup-updates", "0", "--max-update", "1", "--protect-special-tokens"]
    command = ["fairseq-train", toy_data, *TINY_TRAINING, *still]
    options = ["--initial-output-bias", "frequencies", "--save-dir", tmp_path]
    loss = losses(run([*command, *options]), "valid")[-1]

    text = np.fromfile(toy_data / "train.bin", dtype=np.uint16)
    shares = np.bincount(text[text > 3]) / (text > 3).sum()
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    bias = torch.load(tmp_path / "checkpoint_last.pt")["model"]["lm_head.bias"]
    # What the random weights add to the logits costs a little. Without the bias all symbols are equally likely.
    assert entropy - 0.1 < loss < entropy + 0.3 < math.log2(len(bias)) - 0.7
    assert math.isclose(bias.double().exp().sum().item(), 1.0, abs_tol=1e-5)
    # Loading reads no training text: the folder of a reader may hold the dictionary alone.
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (tmp_path / name).write_bytes((toy_data / name).read_bytes())
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "checkpoint_last.pt")], {"data": str(tmp_path)}
    )
    assert torch.equal(model.lm_head.bias, bias)
