"""Run programs in parallel, in the order of their dependencies; continue after failures and interruptions.

The result of each finished program is stored in a small file, its marker, so that later calls skip the program.
"""

import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files import atomic
from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.options import available_cores
from fairseq_maelm.sweep import process_server
from fairseq_maelm.sweep.log import last_line
from fairseq_maelm.sweep.progress import Progress

_POLL_SECONDS, _STOP_SECONDS = 0.2, 20


class Process(NamedTuple):
    """A program to run: its command line, and variables to add to the environment."""

    words: list[str]
    environment: dict[str, str]

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


@dataclass(eq=False)
class Job:
    """A program with a result.

    Attributes:
        name: shown in messages.
        file: path of the marker, the JSON file with the result or the reason for a failure; or a function that returns
            this path when the job can start, if it is not known earlier.
        words: function that makes the command line, called when the job can start.
        result: function that reads the result from the log; raises a ValueError if the log shows a failure.
        resumes: whether the program continues from a saved state; if so, its earlier log is kept.
        after: groups of jobs. The job starts after all of them have ended, if at least one in each group succeeded.
        cost: relative duration, its weight in the overall progress.
        ended: function called after the marker is written.
        clears: unfinished files and folders of an earlier attempt, removed before the program starts.
        environment: environment variables to add.
        one_gpu: whether the program uses only the first GPU of its slot.
    """

    name: str
    file: Path | Callable[[], Path]
    words: Callable[[], list[str]]
    result: Callable[[Path], dict[str, Any]] = lambda log: {}
    resumes: bool = False
    after: list[Sequence["Job"]] = field(default_factory=list)
    cost: float = 1.0
    ended: Callable[[], None] = field(default=lambda: None)
    clears: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    one_gpu: bool = False

    @property
    def marker(self) -> Path:
        """The path of the marker."""
        return self.file if isinstance(self.file, Path) else self.file()

    @property
    def log(self) -> Path:
        """The file for the program's output."""
        return self.marker.with_suffix(".log")

    def process(self, slot: str) -> Process:
        """Return the program to run in ``slot``: GPU ids separated by commas, or "" for the CPU."""
        gpus = slot.split(",")[0] if self.one_gpu else slot
        return Process(self.words(), {**self.environment, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})})

    def clear(self) -> None:
        """Remove unfinished files and folders of an earlier attempt."""
        for path in self.clears:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file, or return None if it does not exist."""
    return atomic.read_json(path) if path.exists() else None


def is_finished(marker: Path) -> bool:
    """Return whether a job has succeeded."""
    result = read_json(marker)
    return result is not None and "failed" not in result


class LocalProcess(NamedTuple):
    """A program on this machine."""

    process: BaseProcess

    def poll(self) -> str | None:
        """Return None while the program runs, "" after exit status 0, otherwise the reason for the failure."""
        status = self.process.exitcode
        if not status:
            return None if status is None else ""
        return f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"


class LocalLauncher:
    """Starts and stops programs on this machine; programs that run at the same time share the CPU cores."""

    def __init__(self, side_by_side: int) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._environment = {
            "OMP_NUM_THREADS": str(max(1, available_cores() // side_by_side)),
            **os.environ,
            "PATH": path,
        }

    def start(self, job: Job, slot: str) -> LocalProcess | None:
        """Start a job; return None if its program is still running, left by an earlier runner that was killed."""
        process = job.process(slot)
        with open(job.log, "ab") as log:
            # A running program locks its log.
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            job.clear()
            if not job.resumes:
                log.truncate(0)
            log.write(f"$ {process}\n".encode())
        return LocalProcess(process_server.start(process.words, {**self._environment, **process.environment}, job.log))

    def leave(self, running: Sequence[LocalProcess]) -> None:
        """Terminate programs, and kill those that do not end in time."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for each in running:
                process_server.send_signal(each.process, sent)
            deadline = time.monotonic() + _STOP_SECONDS
            for each in running:
                each.process.join(max(0.0, deadline - time.monotonic()))


def run(jobs: Sequence[Job], slots: Sequence[str], launcher: Any = None, retry_failed: bool = True) -> None:
    """Run all unfinished jobs, one in each slot at a time.

    Jobs start in the given order when possible, but jobs whose dependencies have finished come before jobs without
    dependencies. If a job fails, its marker stores the reason, and jobs that cannot run without it are skipped.

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
        self.free, self.launcher, self.retry_failed = list(slots), launcher, retry_failed
        # Jobs that depend on finished jobs come first, so that an interrupted study has whole rows.
        self.waiting = {job: None for job in sorted(jobs, key=lambda job: not job.after) if self._is_due(job)}
        self.running: dict[Job, tuple[Any, str]] = {}
        self.progress = Progress(sum(job.cost for job in self.waiting), len(jobs), len(jobs) - len(self.waiting))

    def _is_due(self, job: Job) -> bool:
        result = read_json(job.marker)
        return result is None or ("failed" in result and self.retry_failed)

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
        """Start a job if its dependencies have ended; drop it if it can never start or need not run."""
        if any(each in self.waiting or each in self.running for group in job.after for each in group):
            return
        possible = all(any(is_finished(each.marker) for each in group) for group in job.after)
        if not possible or not self._is_due(job):
            del self.waiting[job]
            self.progress.ended(
                job.cost, f"{job.name}: NOT RUN, since a job that it needs failed" if not possible else ""
            )
            return
        job.marker.parent.mkdir(parents=True, exist_ok=True)
        started = self.launcher.start(job, self.free[0])
        if started is not None:
            # The marker may contain the failure of an earlier attempt.
            job.marker.unlink(missing_ok=True)
            del self.waiting[job]
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
