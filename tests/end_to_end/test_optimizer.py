"""Optimizers in the real command: ``adam`` and ``fused_adamw`` continue each other, and ``muon`` continues itself."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import differences, results, training
from end_to_end.toy import losses, run

HALF, WHOLE = 6, 12
LAST = "checkpoint_last.pt"


def train(data: Path, folder: Path, optimizer: str, updates: int, *options: Any) -> tuple[dict[str, Any], list[float]]:
    """The end of a run and its losses; the last --optimizer given is the one that counts."""
    output = run(training(data, folder, "--optimizer", optimizer, "--max-update", updates, *options))
    return results(folder / LAST), losses(output)


def distance(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference between weights or moments of two runs."""
    pairs = [(first["model"][name], second["model"][name]) for name in first["model"]]
    for index, state in first["optimizer"]["state"].items():
        other = second["optimizer"]["state"][index]
        assert (state["step"], state.keys()) == (other["step"], other.keys())
        pairs += [(state[name], other[name]) for name in ("exp_avg", "exp_avg_sq")]
    return max(float((one.double() - two.double()).abs().max()) for one, two in pairs)


@pytest.mark.slow
def test_run_changes_between_both_optimizers(data, tmp_path):
    """Half of one run and half of the other: the curve, and the end, are those of either whole run."""
    expected, curve = train(data, tmp_path / "adam", "adam", WHOLE, "--save-interval-updates", HALF)
    fused, fused_curve = train(data, tmp_path / "fused_adamw", "fused_adamw", WHOLE, "--save-interval-updates", HALF)
    assert curve[0] - curve[-1] > 0.2
    assert fused_curve == pytest.approx(curve, abs=2e-3)
    # Adam's first updates divide by moments near zero: what rounding leaves is of the order of the learning rate.
    assert distance(fused, expected) < 1e-3
    for first, second in (("adam", "fused_adamw"), ("fused_adamw", "adam")):
        folder = tmp_path / f"{first}-{second}"
        folder.mkdir()
        shutil.copy(tmp_path / first / f"checkpoint_1_{HALF}.pt", folder / LAST)
        changed, rest = train(data, folder, second, WHOLE)
        assert len(rest) == WHOLE - HALF
        assert rest == pytest.approx(curve[HALF:], abs=2e-3)
        assert changed["updates"] == WHOLE
        assert distance(changed, expected) < 1e-3


MUON: list[Any] = ["--weight-decay", 0.1, "--update-freq", 2, "--store-ema", "--ema-decay", 0.9]


@pytest.mark.parametrize("precision", [["--precision", "bf16"], ["--fp16", "--memory-efficient-fp16"]], ids=" ".join)
def test_muon_stopped_and_continued_equals_never_stopped(data, tmp_path, precision):
    whole, curve = train(data, tmp_path / "whole", "muon", WHOLE, *MUON, *precision)
    assert curve[0] - curve[-1] > 0.3
    train(data, tmp_path / "parts", "muon", HALF, *MUON, *precision)
    parts, rest = train(data, tmp_path / "parts", "muon", WHOLE, *MUON, *precision)
    assert rest == curve[HALF:]
    assert differences(whole, parts) == []
    averages = [torch.load(tmp_path / name / LAST)["extra_state"]["ema"] for name in ("whole", "parts")]
    assert differences(*averages) == []
    hidden = [state for state in whole["optimizer"]["state"].values() if "momentum_buffer" in state]
    assert len(hidden) > 10 and {state["momentum_buffer"].dtype for state in hidden} == {torch.float32}
