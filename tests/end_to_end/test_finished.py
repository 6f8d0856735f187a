"""A run that has reached its end, started again, changes no byte and says that it is complete."""

from pathlib import Path
from typing import Any

from end_to_end.runs import LAST, assert_equal_end, contents, logged, narrow
from end_to_end.small import results, updates
from end_to_end.test_distributed import run_ranks
from end_to_end.toy import run, train_log


def validated(data: Path, save_dir: Path, *options: Any, **changes: Any) -> list[Any]:
    return [word for word in narrow(data, save_dir, *options, **changes) if word != "--disable-validation"]


def assert_complete(command: list[Any], folder: Path, limit: str) -> None:
    """Started again, the run does nothing, says why, and ends well."""
    before = contents(folder)
    output = run(command)
    [line] = logged(output, "this run is complete after")
    assert line.endswith(f"nothing is changed: to continue it, raise {limit}")
    assert train_log(output) == []
    assert contents(folder) == before


def test_all_updates_made(data, tmp_path):
    command = validated(data, tmp_path, "--validate-interval-updates", 3)
    run(command)
    assert_complete(command, tmp_path, "--max-update 14")
    # It is continued by a higher limit, and ends where a run ends that was never finished.
    run(validated(data, tmp_path, "--validate-interval-updates", 3, updates=17))
    run(validated(data, tmp_path.with_name("whole"), "--validate-interval-updates", 3, updates=17))
    assert_equal_end(tmp_path, tmp_path.with_name("whole"))


def test_all_epochs_made(data, tmp_path):
    command = narrow(data, tmp_path, "--max-epoch", 1, updates=0)
    run(command)
    assert results(tmp_path / LAST)["updates"] == 10
    assert_complete(command, tmp_path, "--max-epoch 1")


def test_out_of_time(data, tmp_path):
    command = narrow(data, tmp_path, "--stop-time-hours", 1e-9)
    run(command)
    assert results(tmp_path / LAST)["updates"] == 1
    assert_complete(command, tmp_path, "--stop-time-hours 1e-09")


def test_stopped_by_patience(data, tmp_path):
    """At learning rate 0 nothing improves after the first validation."""
    still = ["--lr", "0", "--patience", 2, "--validate-interval-updates", 2]
    run(validated(data, tmp_path, *still, updates=100))
    assert results(tmp_path / LAST)["updates"] == 6
    assert_complete(validated(data, tmp_path, *still, updates=100), tmp_path, "--patience 2")
    # Interrupted after one validation without improvement, it needs only one more.
    interrupted = tmp_path.with_name("interrupted")
    run(validated(data, interrupted, *still, updates=4))
    run(validated(data, interrupted, *still, updates=100))
    assert results(interrupted / LAST)["updates"] == 6


def test_two_ranks(data, tmp_path):
    command = narrow(data, tmp_path / "run", "--batch-size", 8, "--ddp-backend", "legacy_ddp")
    run_ranks(command, 2, tmp_path)
    before = contents(tmp_path / "run")
    output = run_ranks(command, 2, tmp_path)
    assert len(logged(output, "this run is complete after 14 updates")) == 1
    assert updates(output) == [] and contents(tmp_path / "run") == before
