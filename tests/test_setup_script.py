"""scripts/setup.sh refuses what cannot work before it writes anything, and says what to do."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "setup.sh"
# The programs that the script calls before it checks the compiler.
TOOLS = ["bash", "cat", "cksum", "dirname", "head", "paste", "sed", "sort", "tr", "uname"]

needs_compiler = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12) and (platform.system(), platform.machine()) == ("Linux", "x86_64"),
    reason="fairseq-fixed has a ready wheel for this Python, so that no compiler is asked for",
)


def executable(path: Path, text: str) -> str:
    """Write a small shell program and return its path."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def refused(venv: Path, *arguments: str, **environment: str) -> str:
    """Run the script for the environment ``venv``, check that it fails and changes nothing, and return its message."""
    before = sorted(venv.parent.rglob("*"))
    variables = {**os.environ, "PYTHON": sys.executable, **environment, "MAELM_VENV": str(venv)}
    result = subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "set-up stopped:" in result.stderr
    assert sorted(venv.parent.rglob("*")) == before
    return result.stderr


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return the path of the environment, which the script must not make."""
    return tmp_path / "venv"


def test_unknown_extras(venv: Path) -> None:
    assert re.search(r'there is no extra "plot"[\s\S]*setup.py has: hf .*plots .*dev', refused(venv, "dev,plot"))


@pytest.mark.parametrize(
    ("variable", "program", "expected"),
    [
        ("PYTHON", "echo 'no such version' >&2; exit 127", r"does not run[\s\S]*no such version"),
        *[("PYTHON", f"echo {each}", f"is Python {each}; 3.10 to 3.13 are supp") for each in ("3.9", "3.14", "2.7")],
        pytest.param("CXX", "echo 'fatal error: Python.h: No such file' >&2; exit 1", "-dev", marks=needs_compiler),
        pytest.param("CXX", "echo 'internal error' >&2; exit 1", "internal error", marks=needs_compiler),
    ],
)
def test_programs_that_cannot_be_used(variable: str, program: str, expected: str, venv: Path, tmp_path: Path) -> None:
    assert re.search(expected, refused(venv, **{variable: executable(tmp_path / "program", program)}))


@needs_compiler
def test_no_compiler(venv: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))
    assert re.search(r"no C\+\+ compiler[\s\S]*apt-get install g\+\+", refused(venv, PATH=str(folder), CXX=""))


def test_folder_that_is_no_environment_is_left_alone(venv: Path) -> None:
    venv.mkdir()
    (venv / "thesis.txt").write_text("precious", encoding="utf-8")
    assert "is not a virtual environment; it is left as it is" in refused(venv)


def test_another_set_up_at_work(venv: Path) -> None:
    venv.mkdir()
    (venv / "pyvenv.cfg").touch()
    descriptor = os.open(venv, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "another set-up is at work" in refused(venv)
    os.close(descriptor)


def test_first_set_up_without_packages(venv: Path) -> None:
    """Nothing is there yet, so that the script gets as far as its first call of pip, which cannot find anything."""
    variables = {**os.environ, "PYTHON": sys.executable, "MAELM_VENV": str(venv), "PIP_NO_INDEX": "1"}
    variables.pop("TORCH", None)
    result = subprocess.run(
        ["bash", str(SCRIPT)], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 1
    assert "this step could not be finished (exit status 1)" in result.stderr
    assert not (venv / "setup.stamp").exists()
