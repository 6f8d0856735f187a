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


def test_the_best_validation_is_the_result(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    lines = [
        "$ fairseq-train\n",
        line("train_inner", epoch=1, loss="1.5", num_updates="5"),
        valid(1, 10, mcc="20.5", accuracy="70"),
        line("train", epoch=1, train_loss="1.2", train_wall="8"),
        valid(2, 20, mcc="31.25", accuracy="69"),
        valid(3, 30, mcc="31.25", accuracy="68"),
        line("train", epoch=3, train_loss="1.0", train_wall="24"),
        valid(4, 40, mcc="nan", accuracy="50"),
        '| INFO | valid | {"cut off',
    ]
    log.write_text("".join(lines), encoding="utf-8")
    assert best_validation(log, "mcc", ["mcc", "accuracy"], ["valid"]) == {
        "score": 31.25, "scores": [31.25], "figures": {"mcc": 31.25, "accuracy": 68.0}, "epoch": 3, "updates": 30,
        "seconds": 24.0,
    }  # fmt: skip


def test_seconds_of_many_short_reports_are_not_rounded_away(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    reports = [line("train_inner", epoch=1, num_updates=str(20 * number), train_wall="0") for number in range(1, 15)]
    # The second epoch was interrupted after its end and before it could be saved.
    ends = [line("train", epoch=epoch, train_train_wall=f"{seconds}") for epoch, seconds in ((1, 7), (2, 5), (2, 6))]
    log.write_text("".join([*reports, *ends]), encoding="utf-8")
    assert training_seconds(log) == 13


def test_several_validation_sets_are_taken_from_one_round(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    rounds = ((1, "80", "90"), (2, "82", "81"))
    log.write_text(
        "".join(
            valid(epoch, 10 * epoch, accuracy=first) + valid(epoch, 10 * epoch, "valid1", accuracy=second)
            for epoch, first, second in rounds
        ),
        encoding="utf-8",
    )
    result = best_validation(log, "accuracy", ["accuracy"], ["valid", "valid1"])
    assert result["scores"] == [82.0, 81.0]
    assert result["figures"] == {"accuracy": 82.0, "valid1_accuracy": 81.0}


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
    (tmp_path / "run.log").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        best_validation(tmp_path / "run.log", "mcc", ["mcc"], ["valid"])
    assert is_divergence(str(caught.value)) == message.startswith("diverged")


def test_the_reason_of_a_failure_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("$ a\nValueError: old\n$ b\nTraceback\ntorch.OutOfMemoryError: CUDA\n  cleaning up\n")
    assert last_line(log) == "torch.OutOfMemoryError: CUDA"
    log.write_text("$ a\nValueError: old\n$ b\nKilled\n")
    assert last_line(log) == "Killed"
    log.write_text("$ b\nFloatingPointError: gradients are Nan/Inf\n\nDuring handling\nTypeError: no hook\n")
    assert last_line(log) == "FloatingPointError: gradients are Nan/Inf"
    assert is_divergence("exit status 1: FloatingPointError: Minimum loss scale reached (0.0001).")
    assert not is_divergence("exit status 1: KeyError: 'mcc'")
