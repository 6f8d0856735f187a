"""Runs that are forked from a server with imported libraries behave like runs that are started as usual."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from end_to_end.small import training
from end_to_end.toy import COMMANDS, USER_DIR, command_environment, losses, toy_data

from fairseq_maelm.sweep import process_server
from sweep.programs import wait_until

__all__ = ["toy_data"]


def outcome(words: list[Any], folder: Path, **variables: str) -> tuple[int | None, str]:
    """Return exit status and output of a run."""
    log = folder / "log"
    process = process_server.start(list(map(str, words)), command_environment(variables), log, folder)
    process.join(300)
    output = log.read_text(encoding="utf-8")
    log.unlink()
    return process.exitcode, output


def words_of(data: Path, folder: Path, *options: Any) -> list[str]:
    name, *words = map(str, training(data, folder, *options))
    return [name, "--user-dir", str(USER_DIR), *words]


def processes_of(folder: Path) -> list[int]:
    """Return the processes with this working folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(process / "cwd"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_results_are_those_of_a_usual_start(toy_data: Path, tmp_path: Path) -> None:
    words = words_of(toy_data, tmp_path / "usual", "--max-update", 3)
    usual = subprocess.run(
        [sys.executable, str(COMMANDS / words[0]), *words[1:]], capture_output=True, text=True, check=True,
        env=command_environment(),
    ).stdout  # fmt: skip
    status, warm = outcome(words_of(toy_data, Path("relative"), "--max-update", 3), tmp_path)
    assert status == 0 and (tmp_path / "relative" / "checkpoint_last.pt").exists()
    assert len(losses(usual)) == 3 and losses(warm) == losses(usual)


def test_status_and_errors_are_its_own(tmp_path: Path) -> None:
    status, output = outcome(["maelm", "no-such-command"], tmp_path)
    assert status == 2 and "invalid choice" in output
    assert outcome(["maelm", "user-dir"], tmp_path) == (0, f"{USER_DIR}\n")
    assert outcome(["bash", "-c", "echo said; kill -TERM $$"], tmp_path) == (-signal.SIGTERM, "said\n")
    assert outcome([sys.executable, "-c", "raise SystemExit('the reason')"], tmp_path) == (1, "the reason\n")


def test_a_signal_reaches_it(toy_data: Path, tmp_path: Path) -> None:
    words, log = words_of(toy_data, tmp_path / "endless", "--max-epoch", 10**6), tmp_path / "log"
    process = process_server.start(words, command_environment(), log, tmp_path)
    wait_until(lambda: log.exists() and "train_inner" in log.read_text())
    process_server.send_signal(process, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_it_ends_with_the_program_that_started_it(toy_data: Path, tmp_path: Path) -> None:
    """The run ends even if that program is killed."""
    words = words_of(toy_data, tmp_path / "run", "--max-epoch", 10**6)
    log, folder = tmp_path / "log", tmp_path / "folder"
    folder.mkdir()
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import os, time\nfrom pathlib import Path\nfrom fairseq_maelm.sweep import process_server\n"
        "if __name__ == '__main__':\n"
        f"    log, folder = Path({str(log)!r}), Path({str(folder)!r})\n"
        f"    process = process_server.start({words!r}, os.environ, log, folder)\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    environment = {**command_environment(), "PYTHONPATH": str(USER_DIR.parent)}
    said = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(starter)], env=environment, stdout=said, stderr=subprocess.STDOUT)
    wait_until(lambda: log.exists() and "train_inner" in log.read_text())
    assert len(processes_of(folder)) == 1
    process.kill()
    wait_until(lambda: not processes_of(folder))
    assert process.communicate(timeout=60)[0] == b"", "the output of the imports is discarded"
