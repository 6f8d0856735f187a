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
    message = refused(venv, "dev,plot")
    assert 'there is no extra "plot"' in message
    assert re.search("setup.py has: hf .*plots .*dev", message)


def test_python_that_does_not_run(venv: Path, tmp_path: Path) -> None:
    broken = executable(tmp_path / "python", "echo 'no such version' >&2; exit 127")
    message = refused(venv, PYTHON=broken)
    assert "does not run" in message
    assert "no such version" in message


@pytest.mark.parametrize("version", ["3.9", "3.14", "2.7"])
def test_python_of_a_wrong_version(venv: Path, tmp_path: Path, version: str) -> None:
    message = refused(venv, PYTHON=executable(tmp_path / "python", f"echo {version}"))
    assert f"is Python {version}; 3.10 to 3.13 are supported" in message


@needs_compiler
def test_no_compiler(venv: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))
    message = refused(venv, PATH=str(folder), CXX="")
    assert "no C++ compiler" in message
    assert "apt-get install g++" in message


@needs_compiler
@pytest.mark.parametrize(
    ("complaint", "expected"),
    [("fatal error: Python.h: No such file or directory", "-dev"), ("internal error", "internal error")],
)
def test_compiler_that_fails(venv: Path, tmp_path: Path, complaint: str, expected: str) -> None:
    assert expected in refused(venv, CXX=executable(tmp_path / "compiler", f"echo '{complaint}' >&2; exit 1"))


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
