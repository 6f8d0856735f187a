"""Training in bfloat16 through the real commands: the curve of fp32, and checkpoints that load anywhere."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import cut, results, training
from end_to_end.toy import losses, run
from fairseq_maelm import MaelmModel

UPDATES, MORE = 40, 10
LAST = "checkpoint_last.pt"


@pytest.fixture(scope="module")
def data(toy_data, tmp_path_factory) -> Path:
    return cut(toy_data, tmp_path_factory.mktemp("short"), 320)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> dict[str, tuple[Path, list[float]]]:
    """For each precision the folder of a run and its losses."""
    made = {}
    for precision in ("fp32", "bf16"):
        folder = tmp_path_factory.mktemp(precision)
        output = run(training(data, folder, "--precision", precision, "--max-update", UPDATES))
        made[precision] = folder, losses(output)
    return made


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.slow
def test_curve_is_that_of_fp32(runs):
    single, half = runs["fp32"][1], runs["bf16"][1]
    assert len(single) == len(half) == UPDATES
    assert mean(single[:5]) - mean(single[-10:]) > 1.0
    assert single != half
    # The same batches with the same dropout: what differs is rounding. Bits per token, of 5 to 9.
    assert max(abs(one - other) for one, other in zip(single, half)) < 0.05
    assert abs(mean(single[-10:]) - mean(half[-10:])) < 0.01


@pytest.mark.slow
def test_checkpoint_is_in_single_precision(runs):
    single, half = (results(folder / LAST) for folder, _ in runs.values())
    assert {name: tensor.dtype for name, tensor in half["model"].items()} == {
        name: tensor.dtype for name, tensor in single["model"].items()
    }
    assert {tensor.dtype for tensor in half["model"].values()} == {torch.float32, torch.int64}
    for state in half["optimizer"]["state"].values():
        assert {state["exp_avg"].dtype, state["exp_avg_sq"].dtype} == {torch.float32}
    # Weights are not rounded to bfloat16 ones.
    weight = half["model"]["encoder.layers.0.fc1.weight"]
    assert (weight != weight.bfloat16().float()).float().mean() > 0.9


@pytest.mark.slow
def test_a_run_continues_in_the_other_precision(runs, data, tmp_path):
    folder, curve = runs["bf16"]
    shutil.copy(folder / LAST, tmp_path / LAST)
    options = ["--precision", "fp32", "--max-update", UPDATES + MORE, "--checkpoint-activations"]
    rest = losses(run(training(data, tmp_path, *options)))
    assert len(rest) == MORE
    # No jump up; learning goes on.
    assert -1.0 < mean(rest) - mean(curve[-10:]) < 0.2
    assert results(tmp_path / LAST)["updates"] == UPDATES + MORE


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "dtype"), [({}, torch.float32), ({"precision": "bf16"}, torch.bfloat16)])
def test_checkpoint_computes_in_single_precision_elsewhere(chosen, dtype, runs, toy_data):
    model = MaelmModel.from_pretrained(str(runs["bf16"][0]), LAST, str(toy_data), **chosen)
    assert model.extract_features(model.encode_batch(["The cook bakes slowly."])).dtype == dtype


def test_fp16_of_fairseq_trains(data, tmp_path):
    """On a GPU --fp16 alone; on a CPU fairseq cannot join the copies of the weights to one tensor."""
    options: list[Any] = ["--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4, "--max-update", 10]
    curve = losses(run(training(data, tmp_path, *options)))
    assert len(curve) == 10
    assert curve[0] - curve[-1] > 0.05
    assert results(tmp_path / LAST)["optimizer"]["loss_scale"] == 4
