"""The one call that measures everything on a GPU: the scripts take its commands, and failures hold up nothing."""

import os
import shlex
import subprocess
from pathlib import Path

import pretraining
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.sh"
STAGES = ("kernels", "attention", "loss", "options", "step", "half")


def run(tmp_path: Path, *words: str, failing: str = "nothing", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a python that writes its arguments down and fails for one of the scripts."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    stand_in = f'printf "%q " "$@" >>{tmp_path}/calls; echo >>{tmp_path}/calls\n[[ "$*" != *{failing}* ]]\n'
    (tools / "python").write_text("#!/usr/bin/env bash\n" + stand_in)
    (tools / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", str(SCRIPT), *words], env=environment, capture_output=True, text=True)


def calls(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "calls"
    return [shlex.split(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_all_stages_run_once(tmp_path: Path) -> None:
    arguments = ("data", str(tmp_path / "results"))
    finished = run(tmp_path, *arguments, AUTHORS_CODE="fork", MINUTES="7")
    assert finished.returncode == 0 and [line.split(":")[0] for line in finished.stdout.splitlines()] == list(STAGES)
    commands = calls(tmp_path)
    assert len(commands) == len(STAGES) and all(Path(call[0]).exists() for call in commands if call[0] != "-m")
    step, half = (pretraining.arguments_of(call[1:]) for call in commands if call[0].endswith("pretraining.py"))
    assert step.device == half.device == "cuda" and step.budget == 5
    assert step.precision is None and half.precision == ["fp16"]
    assert step.contenders.split(",")[-1] == "authors" and str(step.authors_code) == "fork"
    assert run(tmp_path, *arguments).stdout == "" and len(calls(tmp_path)) == len(STAGES)


def test_a_stage_that_fails_is_named_and_runs_again(tmp_path: Path) -> None:
    arguments = ("data", str(tmp_path / "results"), "loss", "options")
    finished = run(tmp_path, *arguments, failing="masked_token_loss")
    assert finished.returncode == 1
    assert "loss: failed" in finished.stdout and "loss.log" in finished.stdout and "options: 0 s" in finished.stdout
    finished = run(tmp_path, *arguments)
    assert finished.returncode == 0 and "options" not in finished.stdout


@pytest.mark.parametrize(("words", "message"), [((), "usage"), (("data",), "usage")])
def test_wrong_calls_are_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    finished = run(tmp_path, *words)
    assert finished.returncode == 2 and message in finished.stderr and not calls(tmp_path)


def test_unknown_stage_fails(tmp_path: Path) -> None:
    finished = run(tmp_path, "data", str(tmp_path / "results"), "nonsense")
    assert finished.returncode == 1 and "nonsense: failed" in finished.stdout
