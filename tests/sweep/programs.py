"""Programs for tests of job runners, and waiting for other processes."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fairseq_maelm.sweep.jobs import Job


def program(folder: Path, name: str, code: str, resumes: bool = False) -> Job:
    """Return a job that runs Python code; its result is the number in the last line of the output."""
    words = [sys.executable, "-c", code]
    return Job(
        name,
        folder / f"{name}.json",
        words,
        lambda log: {"output": float(log.read_text(encoding="utf-8").splitlines()[-1])},
        resumes=resumes,
    )


def counting(folder: Path) -> str:
    """Return code that leaves a mark each time it is run."""
    return f"open({str(folder / 'calls')!r}, 'a').write('x'); print(7, flush=True)"


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text()) if path.exists() else 0


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
