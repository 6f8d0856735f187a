"""Training in bfloat16 through the real commands: the curve of fp32, and checkpoints that load anywhere."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import LAST, cut, refusals, results, training
from end_to_end.toy import losses, run
from fairseq_maelm import MaelmModel

UPDATES, MORE = 40, 10


@pytest.fixture(scope="module")
def data(toy_data, tmp_path_factory) -> Path:
    return cut(toy_data, tmp_path_factory.mktemp("short"), 320)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.slow
def test_bf16_has_the_curve_of_fp32_and_its_checkpoint_is_in_single_precision(data, tmp_path):
    single, half = (
        losses(run(training(data, tmp_path / precision, "--precision", precision, "--max-update", UPDATES)))
        for precision in ("fp32", "bf16")
    )
    assert len(single) == len(half) == UPDATES
    assert mean(single[:5]) - mean(single[-10:]) > 1.0 and single != half
    # The same batches with the same dropout: what differs is rounding. Bits per token, of 5 to 9.
    assert max(abs(one - other) for one, other in zip(single, half)) < 0.05
    assert abs(mean(single[-10:]) - mean(half[-10:])) < 0.01

    state, other = results(tmp_path / "bf16" / LAST), results(tmp_path / "fp32" / LAST)
    types = {name: tensor.dtype for name, tensor in state["model"].items()}
    assert types == {name: tensor.dtype for name, tensor in other["model"].items()}
    assert {*types.values()} == {torch.float32, torch.int64}
    for moments in state["optimizer"]["state"].values():
        assert {moments["exp_avg"].dtype, moments["exp_avg_sq"].dtype} == {torch.float32}
    weight = state["model"]["encoder.layers.0.fc1.weight"]
    assert (weight != weight.bfloat16().float()).float().mean() > 0.9, "weights are not rounded"
    for chosen, dtype in (({}, torch.float32), ({"precision": "bf16"}, torch.bfloat16)):
        model = MaelmModel.from_pretrained(str(tmp_path / "bf16"), LAST, str(data), **chosen)
        assert model.extract_features(model.encode_batch(["The cook bakes slowly."])).dtype == dtype

    # It continues in the other precision: no jump up, and learning goes on.
    (tmp_path / "more").mkdir()
    shutil.copy(tmp_path / "bf16" / LAST, tmp_path / "more")
    options = ["--precision", "fp32", "--max-update", UPDATES + MORE, "--checkpoint-activations"]
    rest = losses(run(training(data, tmp_path / "more", *options)))
    assert len(rest) == MORE and -1.0 < mean(rest) - mean(half[-10:]) < 0.2


def test_fp16_of_fairseq_trains(data, tmp_path):
    """On a GPU --fp16 alone; on a CPU fairseq cannot join the copies of the weights to one tensor."""
    for given in (["--fp16"], ["--memory-efficient-fp16"]):
        [line] = refusals(run(training(data, tmp_path, *given), check=False))
        assert "--fp16 needs a GPU: omit it, or give --precision bf16 instead" in line
    options: list[Any] = ["--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4, "--max-update", 10]
    curve = losses(run(training(data, tmp_path, *options)))
    assert len(curve) == 10
    assert curve[0] - curve[-1] > 0.05
    assert results(tmp_path / LAST)["optimizer"]["loss_scale"] == 4
