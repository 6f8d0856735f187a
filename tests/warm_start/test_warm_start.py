"""Runs that a warm server makes behave as processes started in the usual way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.small import training
from end_to_end.toy import COMMANDS, TINY_TRAINING, USER_DIR, command_environment, losses, toy_data, warm_server

from fairseq_maelm.warm_start.protocol import read_at_import
from fairseq_maelm.warm_start.runner import WarmStart, warm_start

__all__ = ["toy_data"]


@pytest.fixture(scope="module")
def server() -> WarmStart:
    return warm_server()


def words_of(data: Path, folder: Path, *options: Any) -> list[str]:
    name, *words = map(str, training(data, folder, *options))
    return [name, "--user-dir", str(USER_DIR), *words]


@pytest.fixture
def endless(server: WarmStart, toy_data: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training that goes on until it is stopped, and has begun."""
    words = server.command(words_of(toy_data, tmp_path / "endless", "--max-epoch", 10**6))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    assert process.stdout is not None
    assert any("train_inner" in line for line in process.stdout)
    yield process
    process.kill()
    process.stdout.close()
    process.wait()


def environment(**changes: str) -> dict[str, str]:
    return command_environment(changes)


def test_the_runs_environment_is_the_clients(server):
    """The number of columns that help is broken into is read when a command runs."""
    narrow, wide = (
        subprocess.run(
            server.command(["fairseq-train", "--help"]),
            capture_output=True,
            text=True,
            env=environment(COLUMNS=columns),
        ).stdout
        for columns in ("60", "200")
    )
    assert len(narrow.splitlines()) > len(wide.splitlines())


def processes_of(folder: Path) -> list[int]:
    """Processes with an open file below a folder, or whose working directory it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(process / "cwd"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until_gone(folder: Path) -> None:
    for _ in range(500):
        if not processes_of(folder):
            return
        time.sleep(0.02)
    pytest.fail(f"still running in {folder}: {processes_of(folder)}")


def test_results_are_those_of_a_usual_start(server, toy_data, tmp_path):
    logs = []
    for name in ("usual", "warm"):
        words = words_of(toy_data, tmp_path / name, "--max-update", 3)
        words = server.command(words) if name == "warm" else [sys.executable, str(COMMANDS / words[0]), *words[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=True)
        logs.append(losses(done.stdout))
    assert len(logs[0]) == 3
    assert logs[0] == logs[1]


def test_status_output_and_error_are_the_runs(server, tmp_path):
    words = server.command(["fairseq-train", str(tmp_path / "nowhere"), "--user-dir", str(USER_DIR), *TINY_TRAINING])
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "there is no dict.txt" in done.stderr
    shown = subprocess.run(
        server.command(["fairseq-train", "--help"]), capture_output=True, text=True, env=environment(), check=False
    )
    assert shown.returncode == 0
    assert "--user-dir" in shown.stdout


def test_relative_paths_are_the_clients(server, toy_data, tmp_path):
    words = words_of(toy_data, Path("relative"), "--max-update", 1)
    subprocess.run(server.command(words), env=environment(), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "relative" / "checkpoint_last.pt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_run(endless, number):
    endless.send_signal(number)
    endless.communicate(timeout=60)
    assert endless.returncode == -number


def test_killing_the_client_kills_the_run(server, toy_data, tmp_path):
    words = server.command(words_of(toy_data, tmp_path / "run", "--max-epoch", 10**6))
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), cwd=tmp_path
    )
    with process:
        assert process.stdout is not None
        assert any("train_inner" in line for line in process.stdout)
        assert len(processes_of(tmp_path)) == 2
        process.kill()
    wait_until_gone(tmp_path)


def test_a_run_with_other_variables_for_imports_starts_in_the_usual_way(server):
    words = server.command(["fairseq-train", "--help"])
    done = subprocess.run(words, capture_output=True, text=True, env=environment(OMP_NUM_THREADS="2"), check=False)
    assert done.returncode == 0
    assert "--user-dir" in done.stdout


def test_a_shell_script_finds_the_stand_in(server):
    found = subprocess.run(
        ["bash", "-c", "command -v fairseq-train"], capture_output=True, text=True, env=environment()
    )
    assert found.stdout.strip() == str(server.stand_ins / "fairseq-train")
    done = subprocess.run(
        ["bash", "-c", 'fairseq-train "$@"', "-", "--help"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0
    assert "--user-dir" in done.stdout


def outcome(words: list[str], folder: Path) -> tuple[int, str]:
    """Status and output of a command in a shell that has the stand-ins."""
    done = subprocess.run(
        ["bash", "-c", '"$@"', "-", *words], capture_output=True, text=True, env=environment(), cwd=folder, check=False
    )
    return done.returncode, done.stdout


def test_a_python_script_runs_as_if_it_were_started(server, tmp_path):
    """Its modules, arguments and status are its own, and the libraries were there before it imported any."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside_it.py").write_text("here = __name__\n", encoding="utf-8")
    (tmp_path / "scripts" / "script.py").write_text(
        "import logging\nimport sys\nloaded = 'fairseq' in sys.modules\nimport beside_it\n"
        "logging.getLogger('quiet').info('not to be seen')\n"
        "print(__name__, __file__, sys.argv, beside_it.here, loaded)\nsys.exit(len(sys.argv))\n",
        encoding="utf-8",
    )
    words = ["scripts/script.py", "one", "--two"]
    expected = f"__main__ {tmp_path / words[0]} {words} beside_it"
    assert outcome(["python", *words], tmp_path) == (3, f"{expected} True\n")
    assert outcome([sys.executable, *words], tmp_path) == (3, f"{expected} False\n")


@pytest.mark.parametrize(
    "words", [["-c", "import sys; print('fairseq' in sys.modules)"], ["-m", "this"], ["missing.py"]]
)
def test_what_is_no_script_starts_in_the_usual_way(server, tmp_path, words):
    assert outcome(["python", *words], tmp_path) == outcome([sys.executable, *words], tmp_path)


@pytest.mark.skipif(not (COMMANDS / "maelm").exists(), reason="the package is not installed")
def test_commands_of_this_package_are_made_of_this_package(server, tmp_path):
    status, output = outcome(["maelm", "user-dir"], tmp_path)
    assert (status, output.strip()) == (0, str(USER_DIR))
    assert outcome(["maelm", "no-such-command"], tmp_path)[0] == 2


def test_a_command_that_it_does_not_know_stays_as_it_is(server):
    assert server.command(["fairseq-preprocess", "--help"]) == ["fairseq-preprocess", "--help"]


def test_without_a_server_the_program_starts_in_the_usual_way(tmp_path):
    gone = WarmStart(tmp_path / "socket", COMMANDS, tmp_path)
    done = subprocess.run(
        gone.command(["fairseq-train", "--help"]), capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0
    assert "--user-dir" in done.stdout


def test_the_end_of_the_server_is_the_end_of_its_runs(toy_data, tmp_path):
    with warm_start(environment()) as server:
        words = server.command(words_of(toy_data, tmp_path / "run", "--max-epoch", 10**6))
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), cwd=tmp_path
        )
        assert process.stdout is not None
        assert any("train_inner" in line for line in process.stdout)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    wait_until_gone(tmp_path)


def test_what_libraries_set_does_not_matter(monkeypatch):
    """scikit-learn sets these when it is imported, which may be after the server has started."""
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")
    assert not any(name.startswith("KMP_") for name in read_at_import(environment()))
