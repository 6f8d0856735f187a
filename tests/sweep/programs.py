"""Programs for tests, and waiting for other processes."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fairseq_maelm.sweep.programs import Program


def program(folder: Path, name: str, code: str, resumes: bool = False) -> Program:
    """Return a program of Python code; its result is the number in the last line of the output."""
    return Program(
        name,
        folder / f"{name}.json",
        [sys.executable, "-c", code],
        lambda log: {"output": float(log.read_text(encoding="utf-8").splitlines()[-1])},
        resumes=resumes,
    )


def marking(folder: Path, *marks: str) -> str:
    """Return code that adds marks to a file, half a second apart."""
    file = str(folder / "marks")
    return f"import time; [(open({file!r}, 'a').write(mark), time.sleep(0.5)) for mark in {marks!r}]; print(7)"


def marks(folder: Path) -> str:
    path = folder / "marks"
    return path.read_text() if path.exists() else ""


def wait_until(condition: Any, seconds: float = 240) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Tell whether a process is alive, and not a zombie."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(status.stdout.strip()) and not status.stdout.startswith("Z")
