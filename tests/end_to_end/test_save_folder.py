"""A save folder belongs to one run at a time, and to the run whose checkpoints it holds."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from end_to_end.runs import LAST, UPDATES, contents, narrow, refusals
from end_to_end.small import results
from end_to_end.toy import COMMANDS, USER_DIR, command_environment, run
from fairseq_maelm.fairseq_fixes.resuming import LOCK_FILE


def start(command: list[Any], log: Path) -> "subprocess.Popen[bytes]":
    """Start a command of fairseq-train and leave it running."""
    name, *words = map(str, command)
    with open(log, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, str(COMMANDS / name), "--user-dir", str(USER_DIR), *words],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=command_environment(),
            cwd=log.parent,
        )


def wait_until(reached: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(12_000):
        if reached():
            return
        assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.02)
    pytest.fail(log.read_text(encoding="utf-8")[-3000:])


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_second_run_is_told_who_has_the_folder(data, finished, tmp_path, sent):
    folder, log = tmp_path / "run", tmp_path / "first.log"
    # Long enough to be there until it is stopped.
    first = start(narrow(data, folder, updates=100_000), log)
    try:
        wait_until((folder / LAST).exists, first, log)
        before = (folder / LAST).stat().st_mtime
        [line] = refusals(run(narrow(data, folder), check=False))
        assert (
            f"another fairseq-train is writing to {folder}; it is process {first.pid} on {socket.gethostname()}" in line
        )
        assert ", since 20" in line and "wait for it, stop it, or name another folder" in line
        wait_until(lambda: (folder / LAST).stat().st_mtime > before, first, log)
    finally:
        first.send_signal(sent)
        first.wait()
    assert (folder / LOCK_FILE).exists() == (sent == signal.SIGKILL)
    # What the first one leaves is in nobody's way, and removed.
    leftover = folder / f"{LAST}.{first.pid}-0123abcd.tmp"
    leftover.write_bytes(b"half")
    reached = results(folder / LAST)["updates"]
    run(narrow(data, folder, updates=reached + 1))
    assert results(folder / LAST)["updates"] == reached + 1
    assert not leftover.exists() and not (folder / LOCK_FILE).exists()


def test_a_run_that_saves_nothing_needs_no_lock(data, finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    before = contents(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / LOCK_FILE)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    try:
        assert "another fairseq-train" in refusals(run(narrow(data, folder), check=False))[0]
        output = run(narrow(data, folder, "--no-save", updates=UPDATES + 1))
        assert f'"num_updates": "{UPDATES + 1}"' in output
    finally:
        holder.communicate()
    assert contents(folder) == {**before, LOCK_FILE: contents(folder)[LOCK_FILE]}


HOLD = """
import fcntl, json, os, socket, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_failing_run_frees_the_folder(data, tmp_path):
    output = run(narrow(data, tmp_path, "--lr", "1e30"), check=False)
    assert "FloatingPointError" in output
    assert "crash.pt" in contents(tmp_path) and LOCK_FILE not in contents(tmp_path)


@pytest.mark.parametrize("resets", [[], ["--reset-optimizer", "--reset-dataloader", "--reset-meters"]])
def test_a_run_from_elsewhere_is_kept_out(data, finished, tmp_path, resets):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    pretrained = Path(shutil.copy(finished / LAST, tmp_path / "pretrained.pt"))
    before = contents(folder)
    command = narrow(data, folder, "--restore-file", pretrained, *resets, updates=UPDATES + 2)
    [line] = refusals(run(command, check=False))
    assert f"{folder} holds checkpoints of another run" in line and "name another --save-dir" in line
    assert contents(folder) == before


def test_the_folders_own_run_may_be_reset(data, finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    run(narrow(data, folder, "--reset-optimizer", "--reset-dataloader", "--reset-meters", updates=2))
    assert results(folder / LAST)["updates"] == 2


def test_a_checkpoint_without_optimizer_state_is_not_trained_twice(data, tmp_path):
    folder = tmp_path / "run"
    run(narrow(data, folder, "--no-save-optimizer-state"))
    before = contents(folder)
    [line] = refusals(run(narrow(data, folder, updates=UPDATES + 2), check=False))
    assert f"checkpoint of {UPDATES} updates" in line and "holds no optimizer state" in line
    assert contents(folder) == before
    # Finished, it stays finished.
    assert "this run is complete" in run(narrow(data, folder, "--no-save-optimizer-state"))
    assert contents(folder) == before


def test_the_lock_says_who_holds_it(data, finished, tmp_path):
    """Written while a run is under way, in a form that people can read."""
    log = tmp_path / "run.log"
    process = start(narrow(data, tmp_path / "run", updates=100_000), log)
    try:
        wait_until((tmp_path / "run" / LAST).exists, process, log)
        holder = json.loads((tmp_path / "run" / LOCK_FILE).read_text(encoding="utf-8"))
        assert (holder["process"], holder["host"]) == (process.pid, socket.gethostname())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
