"""Results read from fairseq's logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.sweep.log import best_validation, is_divergence, last_line, training_seconds


def line(kind: str, **metrics: Any) -> str:
    """Return a log line as fairseq writes it, with numbers as text."""
    return f"2026-01-01 00:00:00 | INFO | {kind} | {json.dumps(metrics)}\n"


def valid(epoch: int, updates: int, kind: str = "valid", **metrics: str) -> str:
    named = {f"{kind}_{name}": value for name, value in metrics.items()}
    return line(kind, epoch=epoch, **named, **{f"{kind}_num_updates": str(updates)})


def written(folder: Path, *lines: str) -> Path:
    (folder / "run.log").write_text("".join(lines), encoding="utf-8")
    return folder / "run.log"


def test_the_best_validation_is_the_result(tmp_path: Path) -> None:
    log = written(
        tmp_path,
        "$ fairseq-train\n",
        line("train_inner", epoch=1, loss="1.5", num_updates="5"),
        valid(1, 10, mcc="20.5", accuracy="70") + valid(1, 10, "valid1", mcc="99"),
        line("train", epoch=1, train_loss="1.2", train_wall="8"),
        valid(2, 20, mcc="31.25", accuracy="69") + valid(2, 20, "valid1", mcc="41"),
        valid(3, 30, mcc="31.25", accuracy="68") + valid(3, 30, "valid1", mcc="40"),
        line("train", epoch=3, train_loss="1.0", train_wall="24"),
        valid(4, 40, mcc="nan", accuracy="50"),
        '| INFO | valid | {"cut off',
    )
    expected = {"score": 31.25, "epoch": 3, "updates": 30, "seconds": 24.0}
    found = best_validation(log, "mcc", ["mcc", "accuracy"], ["valid"])
    assert found == {**expected, "scores": [31.25], "figures": {"mcc": 31.25, "accuracy": 68.0}}
    # Several validation sets are taken from one round, that of the first one's best.
    found = best_validation(log, "mcc", ["mcc"], ["valid", "valid1"])
    assert found == {**expected, "scores": [31.25, 40.0], "figures": {"mcc": 31.25, "valid1_mcc": 40.0}}


def test_seconds_of_many_short_reports_are_not_rounded_away(tmp_path: Path) -> None:
    reports = [line("train_inner", epoch=1, num_updates=str(20 * number), train_wall="0") for number in range(1, 15)]
    # The second epoch was interrupted after its end and before it could be saved.
    ends = [line("train", epoch=epoch, train_train_wall=f"{seconds}") for epoch, seconds in ((1, 7), (2, 5), (2, 6))]
    assert training_seconds(written(tmp_path, *reports, *ends)) == 13


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no valid_mcc in the log"),
        (valid(1, 10, accuracy="3"), "no valid_mcc in the log"),
        (valid(1, 10, mcc="nan"), "diverged: valid_mcc was not finite"),
        (line("train_inner", epoch=2, loss="nan") + valid(2, 10, mcc="3"), r"diverged: the loss was nan .*epoch 2"),
        (line("train", epoch=1, train_loss="inf") + valid(1, 10, mcc="3"), "diverged: the loss was inf"),
        (valid(1, 10, mcc="3", loss="nan"), "diverged: the loss was nan"),
    ],
)
def test_runs_without_a_result(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        best_validation(written(tmp_path, text), "mcc", ["mcc"], ["valid"])
    assert is_divergence(str(caught.value)) == message.startswith("diverged")


def test_the_reason_of_a_failure_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    for text, reason in (
        ("$ a\nValueError: old\n$ b\nTraceback\ntorch.OutOfMemoryError: CUDA\n  end\n", "torch.OutOfMemoryError: CUDA"),
        ("$ a\nValueError: old\n$ b\nKilled\n", "Killed"),
        (
            "$ b\nFloatingPointError: gradients\n\nDuring handling\nTypeError: no hook\n",
            "FloatingPointError: gradients",
        ),
        ("", "no output"),
    ):
        assert last_line(written(tmp_path, text)) == reason
    assert is_divergence("exit status 1: FloatingPointError: Minimum loss scale reached (0.0001).")
    assert not is_divergence("exit status 1: KeyError: 'mcc'")
