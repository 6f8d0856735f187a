"""Running fairseq's commands: their output in log files, their progress on the screen, their failures explained."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

# The small matrices of this model do not use more threads well.
_MOST_THREADS = 4
_TAIL_LINES = 15
_RECORD = re.compile(r"\| INFO \| (\w+) \| (\{.*\})\s*$")


class CommandFailed(RuntimeError):
    """A command ended with an error; the message shows the end of its log."""


@dataclass(frozen=True)
class Command:
    """A program to run.

    Attributes:
        arguments: the program's name (of one in the virtual environment) and its arguments.
        log: the file for its output; a run that resumes appends to it.
        updates: how many updates it trains for, 0 if it does not train.
    """

    arguments: tuple[str, ...]
    log: Path
    updates: int = 0


def cores() -> int:
    """The number of processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def log_records(log: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the metrics that fairseq wrote into a log with ``--log-format json``.

    Yields:
        the kind of record ("train_inner", "train", "valid", ...) and its metrics, numbers as numbers.
    """
    if not log.exists():
        return
    with open(log, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if found := _RECORD.search(line):
                with contextlib.suppress(json.JSONDecodeError):
                    yield found[1], {name: _number(value) for name, value in json.loads(found[2]).items()}


def _number(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def run(commands: Sequence[Command], description: str, side_by_side: int = 1) -> None:
    """Runs commands, some at a time, and shows how far they are.

    Args:
        commands: what to run; those that train show their updates.
        description: for the progress bar.
        side_by_side: how many run at the same time; they share the cores.

    Raises:
        CommandFailed: if one fails; the others are stopped.
    """
    threads = max(1, min(cores(), _MOST_THREADS) // side_by_side)
    waiting, running = list(commands), {}
    bar = tqdm(
        total=sum(command.updates for command in commands) or None,
        desc=description,
        unit=" updates",
        mininterval=0.5 if sys.stderr.isatty() else 30.0,
        bar_format=None if any(command.updates for command in commands) else "{desc}: {elapsed}",
    )
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                command = waiting.pop(0)
                running[command] = _start(command, threads)
            time.sleep(0.2)
            for command, process in list(running.items()):
                if process.poll() is not None:
                    del running[command]
                    if process.returncode:
                        raise CommandFailed(_explain(command, process.returncode))
            _show_progress(bar, commands)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        bar.close()


def _start(command: Command, threads: int) -> subprocess.Popen[bytes]:
    command.log.parent.mkdir(parents=True, exist_ok=True)
    program = Path(sys.executable).with_name(command.arguments[0])
    arguments = [str(program), *command.arguments[1:]]
    # The child keeps its copy of the file open.
    with open(command.log, "ab") as log:
        log.write(f"$ {shlex.join(arguments)}\n".encode())
        log.flush()
        return subprocess.Popen(
            arguments,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            # Threads that spin while they wait cost half the speed as soon as another program wants a core.
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"},
        )


def _show_progress(bar: Any, commands: Sequence[Command]) -> None:
    done = 0
    for command in commands:
        last = _last_training_record(command.log) if command.updates else None
        if last is not None:
            done += int(last["num_updates"])
            bar.set_postfix_str(f"loss {last['loss']:.2f}, accuracy {last['accuracy']:.0f} %", refresh=False)
    bar.update(done - bar.n)


def _last_training_record(log: Path) -> dict[str, Any] | None:
    """The newest "train_inner" metrics near the end of a log that is being written."""
    if not log.exists():
        return None
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        found = _RECORD.search(line)
        if found and found[1] == "train_inner":
            return {name: _number(value) for name, value in json.loads(found[2]).items()}
    return None


def _explain(command: Command, status: int) -> str:
    lines = command.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(
        [
            f"{command.arguments[0]} failed (exit status {status}). The end of its log:",
            *(f"    {line}" for line in lines[-_TAIL_LINES:]),
            f"The whole log, with the command line: {command.log}",
            "Mend the cause and give the same command again: what is finished is kept.",
        ]
    )
