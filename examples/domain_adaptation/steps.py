"""Steps of the recipe that leave a file: done once, with their output in a log."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run(command: Sequence[Any], log: Path) -> None:
    """Run a command with its output in a log file; when it fails, say so and where the log is."""
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as stream:
        stream.write(f"$ {shlex.join(words)}\n")
        stream.flush()
        status = subprocess.run(words, stdout=stream, stderr=subprocess.STDOUT).returncode
    if status:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-5:])
        raise ValueError(f"a command failed; its output is {log}\n{tail}")


def once(result: Path, title: str, work: Callable[[], None]) -> Path:
    """Do a step unless its result is there already."""
    print(f"{title}: {'done before' if result.exists() else 'running'}", flush=True)
    if not result.exists():
        work()
    return result
