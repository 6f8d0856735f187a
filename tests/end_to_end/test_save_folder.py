"""A save folder belongs to one run at a time, which nothing that is damaged, missing or finished there destroys."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import (
    BEST,
    LAST,
    LAST_BUT_ONE,
    UPDATES,
    assert_equal_end,
    contents,
    kill_holder,
    logged,
    narrow,
    refusals,
    results,
    start,
    updates,
    wait_until,
)
from end_to_end.test_distributed import run_ranks
from end_to_end.toy import run, train_log
from fairseq_maelm.launch.save_folder import LOCK_FILE


def test_a_second_run_is_told_who_has_the_folder(data, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "first.log"
    # Long enough to be there until it is stopped.
    first = start(narrow(data, folder, updates=100_000), log)
    try:
        wait_until((folder / LAST).exists, first, log)
        before = (folder / LAST).stat().st_mtime
        holder = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        process, host = holder["process"], socket.gethostname()
        assert holder["host"] == host
        [line] = refusals(run(narrow(data, folder), check=False))
        assert f"another fairseq-train is writing to {folder} (process {process} on {host}" in line
        assert ", since 20" in line and "wait for it, stop it, or name another folder" in line
        # What saves nothing needs no lock.
        assert "this run is complete" in run(narrow(data, folder, "--no-save", updates=1))
        wait_until(lambda: (folder / LAST).stat().st_mtime > before, first, log)
        assert kill_holder(folder, first) == process
    finally:
        first.kill()
    # What the first one leaves is in nobody's way, and removed.
    leftover = folder / f"{LAST}.{process}.partial"
    leftover.write_bytes(b"half")
    assert (folder / LOCK_FILE).exists()
    reached = results(folder / LAST)["updates"]
    run(narrow(data, folder, updates=reached + 1))
    assert results(folder / LAST)["updates"] == reached + 1
    assert not leftover.exists() and not (folder / LOCK_FILE).exists()


def test_processes_of_torchrun_on_a_cpu_are_not_ranks_of_one_run(data, tmp_path, monkeypatch):
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    [line] = refusals(run(narrow(data, tmp_path), check=False))
    assert "torchrun started 2 processes, but a run on a CPU has one: omit torchrun" in line
    monkeypatch.setenv("RANK", "1")
    assert "fairseq-train: error" not in run(narrow(data, tmp_path), check=False), "once is enough"
    assert contents(tmp_path) == {}


def test_a_failing_run_frees_the_folder(data, tmp_path):
    output = run(narrow(data, tmp_path, "--lr", "1e30"), check=False)
    assert "FloatingPointError" in output
    # Nothing is left: neither the lock nor fairseq's crash.pt.
    assert contents(tmp_path) == {}


def test_a_checkpoint_without_optimizer_state_is_not_trained_twice(data, tmp_path):
    folder = tmp_path / "run"
    run(narrow(data, folder, "--no-save-optimizer-state"))
    before = contents(folder)
    [line] = refusals(run(narrow(data, folder, updates=UPDATES + 2), check=False))
    assert f"checkpoint of {UPDATES} updates" in line and "has no optimizer state" in line
    assert contents(folder) == before
    # Finished, it stays finished.
    assert "this run is complete" in run(narrow(data, folder, "--no-save-optimizer-state"))
    assert contents(folder) == before


# A run that has reached its end, started again, changes no byte and says that it is complete


def validated(data: Path, save_dir: Path, *options: Any, **changes: Any) -> list[Any]:
    return [word for word in narrow(data, save_dir, *options, **changes) if word != "--disable-validation"]


def assert_complete(command: list[Any], folder: Path, limit: str) -> None:
    """Started again, the run does nothing, says why, and ends well."""
    before = contents(folder)
    output = run(command)
    [line] = logged(output, "this run is complete after")
    assert f"updates ({limit}), so nothing is changed: to continue it, raise this option" in line
    assert train_log(output) == []
    assert contents(folder) == before


def test_all_updates_made(data, finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    assert_complete(validated(data, folder), folder, "--max-update 14")
    # It is continued by a higher limit, and ends where a run ends that was never finished.
    for save_dir in (folder, tmp_path / "whole"):
        run(narrow(data, save_dir, updates=17))
    assert_equal_end(folder, tmp_path / "whole")


def test_a_schedule_that_has_ended(data, tmp_path):
    def cosine(updates: int) -> list[Any]:
        command = narrow(data, tmp_path, updates=updates)
        at = command.index("--total-num-update")
        return [*command[:at], *command[at + 2 :], "--lr-scheduler", "cosine", "--warmup-updates", 0]

    run(cosine(4))
    before = contents(tmp_path)
    [line] = logged(run(cosine(4)), "this run is complete after 4 updates")
    assert "its schedule has ended; to train further, start a new run from its checkpoint" in line
    [line] = refusals(run(cosine(8), check=False))
    told = "with max-update 8 instead of 4, its learning rate would jump from 0.000146447 to 0.000691342. Give the old"
    assert f"cannot continue after 4 updates: {told} value, or start a new run" in line
    assert contents(tmp_path) == before


def test_stopped_by_patience(data, tmp_path):
    """At learning rate 0 nothing improves after the first validation; the run is interrupted after the second."""
    still = ["--lr", "0", "--patience", 2, "--validate-interval-updates", 2]
    for limit in (4, 100):
        run(validated(data, tmp_path, *still, updates=limit))
    assert results(tmp_path / LAST)["updates"] == 6
    assert_complete(validated(data, tmp_path, *still, updates=100), tmp_path, "--patience 2")


# A damaged or missing checkpoint_last.pt costs the updates since the save before it, and never the run


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def test_a_complete_run_gets_its_last_checkpoint_back(data, finished, tmp_path):
    """As after a kill, or on a full disk, between the two files of the last save."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    (folder / LAST).unlink()
    assert "this run is complete after 12 updates" in run(narrow(data, folder, updates=12))
    assert (folder / LAST).read_bytes() == (folder / LAST_BUT_ONE).read_bytes()


def test_two_ranks_go_on_from_the_newest_whole_checkpoint(data, tmp_path):
    """Other damages are in tests/launch/test_save_folder.py."""
    ranks = ["--batch-size", 8, "--ddp-backend", "legacy_ddp"]
    run_ranks(narrow(data, tmp_path / "uninterrupted", *ranks), 2, tmp_path)
    run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    truncate(tmp_path / "run" / LAST)
    output = run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    told = f"training continues from the newest intact checkpoint, {tmp_path / 'run' / LAST_BUT_ONE} (12 updates)"
    assert len(logged(output, f"{LAST} is truncated")) == len(logged(output, told)) == 1
    assert updates(output)[0]["num_updates"] == 13
    assert_equal_end(tmp_path / "run", tmp_path / "uninterrupted")
    # And what one rank refuses, both do.
    for path in (tmp_path / "run").glob("*.pt"):
        truncate(path)
    before = contents(tmp_path / "run")
    with pytest.raises(AssertionError, match=r"fairseq-train: error: .*cannot continue from any other checkpoint"):
        run_ranks(narrow(data, tmp_path / "run", *ranks), 2, tmp_path)
    assert "error" not in (tmp_path / "rank1.log").read_text(encoding="utf-8")
    assert contents(tmp_path / "run") == before


def test_best_is_kept_from_a_run_that_starts_again(data, tmp_path):
    """With validation: a missing checkpoint_last.pt is a way to lose the best model."""
    command = validated(data, tmp_path / "run", "--no-last-checkpoints")
    run(command)
    assert BEST in contents(tmp_path / "run") and LAST not in contents(tmp_path / "run")
    best = torch.load(tmp_path / "run" / BEST)
    again = run(command)
    assert "training continues from the newest intact checkpoint" in again
    kept = torch.load(tmp_path / "run" / BEST)
    assert kept["optimizer_history"][-1]["num_updates"] >= best["optimizer_history"][-1]["num_updates"]
    assert kept["extra_state"]["best"] <= best["extra_state"]["best"]
