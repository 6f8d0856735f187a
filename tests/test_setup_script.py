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
        *[("PYTHON", f"echo {each}", f"is Python {each}; 3.11 to 3.13 are supp") for each in ("3.10", "3.14", "2.7")],
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


def test_what_cannot_be_set_up_is_left_alone(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAELM_VENV", "")
    monkeypatch.setenv("CXX", "false")  # at the latest, this stops the script
    result = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and "MAELM_VENV=$CONDA_PREFIX bash scripts/setup.sh" in result.stderr
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    executable(venv / "bin" / "python", VERSION)
    (venv / "maelm-setup").mkdir()
    (venv / "maelm-setup" / "stamp").write_text(
        f"/some where/fairseq_maelm {venv}.old 1234 56\nhf\ntorch\n", encoding="utf-8"
    )
    assert f"was set up as {venv}.old and moved" in refused(venv)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("removed")
    assert "does not run" in refused(venv)


# A Python whose pip runs once it is installed, but finds no packages. It records its arguments, except for questions.
VERSION = f'case "$*" in *version_info*) echo {sys.version_info[0]}.{sys.version_info[1]}; exit ;; esac'
PYTHON_OF_USER = f"""{VERSION}
case "$*" in -c*) exit 1 ;; *--version) [ -e "$0-pip" ]; exit ;; esac
echo "$*" >>"$0-calls"
case "$*" in *ensurepip*) touch "$0-pip" ;; *) exit 1 ;; esac"""


@pytest.mark.parametrize("kind", ["uv", "interrupted", "link", "conda"])
def test_an_environment_of_the_user_keeps_its_files(kind: str, tmp_path: Path, venv: Path) -> None:
    (venv / "bin").mkdir(parents=True)
    program = Path(executable(venv / "bin" / "python", PYTHON_OF_USER))
    site = venv / "lib" / "python3.11" / "site-packages"
    files = [venv / "thesis.txt", site / "own-1.0.dist-info" / "METADATA", site / "done-1.0.dist-info" / "INSTALLER"]
    # What the script writes under these names is in a folder of its own.
    files += [venv / "constraints.txt", venv / "setup.log", venv / "fairseq" / "mine.py"]
    files += [venv / name for name in (("conda-meta/history",) if kind == "conda" else ("pyvenv.cfg", "bin/activate"))]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious", encoding="utf-8")
    half_written = site / "half-1.0.dist-info"
    given = venv
    if kind == "interrupted":
        os.utime(site / "own-1.0.dist-info", (0, 0))  # by another installer, before
        (venv / "maelm-setup").mkdir()
        (venv / "maelm-setup" / "busy").touch()
        os.utime(venv / "maelm-setup" / "busy", (1, 1))
        half_written.mkdir()
    if kind == "link":
        given = tmp_path / "link"
        given.symlink_to(venv)
    if kind != "uv":
        Path(f"{program}-pip").touch()
    variables = {**os.environ, "PYTHON": sys.executable, "MAELM_VENV": str(given)}
    result = subprocess.run(
        ["bash", str(SCRIPT)], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1 and "build tools, torch" in result.stdout, result.stdout + result.stderr
    calls = Path(f"{program}-calls").read_text(encoding="utf-8").splitlines()
    assert [call.split()[1] for call in calls] == (["ensurepip", "pip"] if kind == "uv" else ["pip"])
    assert {path.read_text(encoding="utf-8") for path in files} == {"precious"}
    assert not half_written.exists()


def test_first_set_up_without_packages(venv: Path) -> None:
    """Nothing is there yet, so that the script gets as far as its first call of pip, which cannot find anything."""
    variables = {**os.environ, "PYTHON": sys.executable, "MAELM_VENV": str(venv), "PIP_NO_INDEX": "1"}
    variables.pop("TORCH", None)
    result = subprocess.run(
        ["bash", str(SCRIPT)], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 1
    assert "this step could not be finished (exit status 1)" in result.stderr
    assert not (venv / "maelm-setup" / "stamp").exists()
