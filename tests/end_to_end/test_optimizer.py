"""Muon in the real command, with a running average: it learns, and continues itself bit for bit."""

from pathlib import Path
from typing import Any

import torch

from end_to_end.small import differences, results, training
from end_to_end.toy import losses, run

HALF, WHOLE = 6, 12
LAST = "checkpoint_last.pt"
MUON: list[Any] = ["--optimizer", "muon", "--precision", "bf16", "--weight-decay", 0.1, "--update-freq", 2]
MUON += ["--store-ema", "--ema-decay", 0.9]


def train(data: Path, folder: Path, updates: int) -> tuple[dict[str, Any], list[float]]:
    """The end of a run and its losses; the last --optimizer given is the one that counts."""
    output = run(training(data, folder, *MUON, "--max-update", updates))
    return results(folder / LAST), losses(output)


def test_muon_stopped_and_continued_equals_never_stopped(data, tmp_path):
    whole, curve = train(data, tmp_path / "whole", WHOLE)
    assert curve[0] - curve[-1] > 0.3
    train(data, tmp_path / "parts", HALF)
    parts, rest = train(data, tmp_path / "parts", WHOLE)
    assert rest == curve[HALF:]
    assert differences(whole, parts) == []
    averages = [torch.load(tmp_path / name / LAST)["extra_state"]["ema"] for name in ("whole", "parts")]
    assert differences(*averages) == []
    hidden = [state for state in whole["optimizer"]["state"].values() if "momentum_buffer" in state]
    assert len(hidden) > 10 and {state["momentum_buffer"].dtype for state in hidden} == {torch.float32}
