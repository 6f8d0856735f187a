"""Run programs side by side; continue after failures and interruptions.

The result of each finished program is stored in a small file, its marker, so that later calls skip the program.
"""

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files import atomic
from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.options import available_cores
from fairseq_maelm.sweep.log import last_line
from fairseq_maelm.sweep.progress import Progress

_POLL_SECONDS, _STOP_SECONDS = 0.2, 20


class Process(NamedTuple):
    """A program to run: its command line, and variables to add to the environment."""

    words: Sequence[str]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


@dataclass(eq=False)
class Job:
    """A program with a result.

    Attributes:
        name: shown in messages.
        marker: path of the JSON file with the result or the reason for a failure.
        words: the command line.
        result: function that reads the result from the log; raises a ValueError if the log shows a failure.
        resumes: whether the program continues from a saved state; if so, its earlier log is kept.
        cost: relative duration, its weight in the overall progress.
        ended: function called after the marker is written.
        environment: environment variables to add.
    """

    name: str
    marker: Path
    words: Sequence[str]
    result: Callable[[Path], dict[str, Any]] = lambda log: {}
    resumes: bool = False
    cost: float = 1.0
    ended: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The file for the program's output."""
        return self.marker.with_suffix(".log")

    def process(self, gpus: str) -> Process:
        """Return the program to run on ``gpus``, ids separated by commas, or "" for the CPU."""
        return Process(self.words, {**self.environment, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})})


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file, or return None if it does not exist."""
    return atomic.read_json(path) if path.exists() else None


def is_finished(marker: Path) -> bool:
    """Return whether a job has succeeded."""
    result = read_json(marker)
    return result is not None and "failed" not in result


class LocalProcess(NamedTuple):
    """A program on this machine, in a process group of its own."""

    process: "subprocess.Popen[bytes]"

    def poll(self) -> str | None:
        """Return None while the program runs, "" after exit status 0, otherwise the reason for the failure."""
        status = self.process.poll()
        if not status:
            return None if status is None else ""
        return f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"


class LocalLauncher:
    """Starts and stops programs on this machine; programs that run at the same time share the CPU cores."""

    def __init__(self, side_by_side: int) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        # Waiting threads that spin halve the speed when other programs run.
        shared = {"OMP_NUM_THREADS": str(max(1, available_cores() // side_by_side)), "OMP_WAIT_POLICY": "PASSIVE"}
        self._environment = {**shared, **os.environ, "PATH": path}

    def start(self, job: Job, gpus: str) -> LocalProcess | None:
        """Start a job; return None if its program is still running, left by an earlier runner that was killed."""
        process = job.process(gpus)
        with open(job.log, "ab") as log:
            # The program inherits the lock on its log.
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if not job.resumes:
                log.truncate(0)
            log.write(f"$ {process}\n".encode())
            log.flush()
            started = subprocess.Popen(
                process.words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self._environment, **process.environment}, start_new_session=True,
            )  # fmt: skip
        return LocalProcess(started)

    def leave(self, running: Sequence[LocalProcess]) -> None:
        """Terminate programs and what they have started, and kill those that do not end in time."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            alive = [each.process for each in running if each.poll() is None]
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            deadline = time.monotonic() + _STOP_SECONDS
            for process in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def run(jobs: Sequence[Job], slots: Sequence[str], launcher: Any = None, retry_failed: bool = True) -> None:
    """Run all unfinished jobs in the given order, one in each slot at a time.

    If a job fails, its marker stores the reason, and the others go on.

    Args:
        jobs: the jobs.
        slots: one entry for each job that may run in parallel: its GPUs as in CUDA_VISIBLE_DEVICES, or "" for the CPU.
        launcher: starts the programs; by default a ``LocalLauncher``, which runs them on this machine.
        retry_failed: whether to rerun jobs that failed earlier.
    """
    queue = _Queue(jobs, slots, launcher or LocalLauncher(len(slots)), retry_failed)
    try:
        queue.run()
    finally:
        queue.launcher.leave([running for running, _ in queue.running.values()])
        queue.progress.close()


class _Queue:
    """Waiting and running jobs."""

    def __init__(self, jobs: Sequence[Job], slots: Sequence[str], launcher: Any, retry_failed: bool) -> None:
        self.free, self.launcher = list(slots), launcher
        results = {job: read_json(job.marker) for job in jobs}
        self.waiting = [job for job, own in results.items() if own is None or ("failed" in own and retry_failed)]
        self.running: dict[Job, tuple[Any, str]] = {}
        self.progress = Progress(sum(job.cost for job in self.waiting), len(jobs), len(jobs) - len(self.waiting))

    def run(self) -> None:
        while self.waiting or self.running:
            for job in list(self.waiting):
                if self.free:
                    self._start(job)
            time.sleep(_POLL_SECONDS)
            for job, (running, slot) in list(self.running.items()):
                ended = running.poll()
                if ended is not None:
                    del self.running[job]
                    self.free.append(slot)
                    self._finish(job, ended)
            self.progress.show([(job.name, job.log, job.cost) for job in self.running])

    def _start(self, job: Job) -> None:
        job.marker.parent.mkdir(parents=True, exist_ok=True)
        started = self.launcher.start(job, self.free[0])
        if started is not None:
            # The marker may contain the failure of an earlier attempt.
            job.marker.unlink(missing_ok=True)
            self.waiting.remove(job)
            self.running[job] = started, self.free.pop(0)

    def _finish(self, job: Job, ended: str) -> None:
        try:
            if ended:
                raise ValueError(f"{ended}: {last_line(job.log)}")
            result = job.result(job.log)
        except ValueError as error:
            result, line = {"failed": str(error)}, f"FAILED, {error} ({job.log})"
        else:
            numbers = {name: value for name, value in result.items() if isinstance(value, (int, float))}
            line = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()) or "done"
        write_json(job.marker, result)
        job.ended()
        self.progress.ended(job.cost, f"{job.name}: {line}", "failed" in result)
