"""The progress of a sweep: of the training that runs, and of all runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.sweep import progress


def write_log(path: Path, limits: str, *reports: dict[str, Any]) -> Path:
    """Write the log of a second attempt."""
    lines = ["$ an earlier attempt", "'max_update': 7, 'max_epoch': 7", "$ fairseq-train", limits]
    lines += [f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(report)}" for report in reports]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def report(updates: int, epochs: float) -> dict[str, str]:
    return {"num_updates": str(updates), "update": str(epochs), "ups": "4", "loss": "7.25"}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("{'max_update': 200, 'max_epoch': 0}", "25 %, 4 updates/s, loss 7.250, 0:00:38 left"),
        ("{'max_epoch': 4, 'max_update': 0}", "50 %, 4 updates/s, loss 7.250, 0:00:12 left"),
        # Whichever comes first ends the training.
        ("{'max_epoch': 4, 'max_update': 2000}", "50 %, 4 updates/s, loss 7.250, 0:00:12 left"),
        ("no limits", "0 %, 4 updates/s, loss 7.250, ? left"),
    ],
)
def test_a_training_is_as_far_as_its_log_says(limits: str, expected: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", limits, report(20, 1.5), report(50, 2.0))
    assert str(progress.training(log)) == expected


def test_the_line_of_a_sweep_counts_the_run_that_is_going_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log", "{'max_update': 200}", report(100, 0.5))
    state = progress.Progress(100.0, 6, 2)
    running = [("large", log, 80.0), ("table", tmp_path / "none", 5.0)]
    # A first run that is over at once says nothing about the time that the others take.
    state.ended(1.0, "instant: done")
    assert state.line([], 1.0) == "  1 % [                    ] 3 of 6 runs"
    state.ended(0.0, "other: FAILED", failed=True)
    expected = " 41 % [########            ] 4 of 6 runs, 1 failed, 0:00:58 left; large: 50 %, 4 updates/s"
    assert state.line(running, 40.0).startswith(expected) and state.line(running, 40.0).endswith("; table")
    # A narrow terminal loses the second program, what is said about all runs, the name, and the bar, in this order.
    both = f"{expected}, loss 7.250, 0:00:25 left; table"
    for columns, line in {
        len(both): both,
        len(both) - 15: both.replace("[########            ]", "[##   ]"),
        len(both) - 16: both.removesuffix("; table").replace("[########            ]", "[####       ]"),
        93: " 41 % [########            ] 4 of 6 runs; large: 50 %, 4 updates/s, loss 7.250, 0:00:25 left",
        70: " 41 % [##   ] 4 of 6 runs; 50 %, 4 updates/s, loss 7.250, 0:00:25 left",
        59: "4 of 6 runs; 50 %, 4 updates/s, loss 7.250, 0:00:25 left",
    }.items():
        assert state.line(running, 40.0, columns) == line
    state.show(running)
    assert capsys.readouterr().err.splitlines() == ["2 of 6 runs done earlier", "instant: done", "other: FAILED"]
    state._shown -= 61
    state.show(running)
    assert capsys.readouterr().err.startswith(" 41 % [")
