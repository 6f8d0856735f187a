"""Run programs in parallel, with progress, and continue later after failures and interruptions.

A small file for each finished program, its marker, holds the result, so that later calls skip it.
"""

import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tqdm import tqdm

from fairseq_maelm import files, warm_start
from fairseq_maelm.files import write_json
from fairseq_maelm.studies.log import last_line, log_records

_POLL_SECONDS, _STOP_SECONDS = 0.2, 20
# In a log file, each update of the progress bar is a line.
_SHOW_SECONDS = 1.0 if sys.stderr.isatty() else 60.0


class Process(NamedTuple):
    """A program to run: its command line, and variables to add to the environment."""

    words: list[str]
    environment: dict[str, str]

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])

    def on(self, slot: str) -> "Process":
        """Return the same program on the GPUs of a slot."""
        return Process(self.words, {**self.environment, **visible(slot)})


def visible(slot: str) -> dict[str, str]:
    """Return the environment variable that assigns a program the GPUs of its slot, if there are any."""
    return {"CUDA_VISIBLE_DEVICES": slot} if slot else {}


@dataclass
class Job:
    """A program with a result.

    Attributes:
        name: shown in messages.
        marker: file for the result, or for the reason for a failure.
        process: makes the command for a slot (a list of GPUs, "" for the CPU).
        result: reads the result from the log; raises a ValueError if the run failed despite its exit status of 0.
        resumes: whether the program continues from its saved state; its log is then continued too.
        followers: jobs that can start after this one has succeeded.
        cost: duration in any unit, for the progress bar.
        ended: called after the marker is written.
        clears: unfinished files and folders of an earlier attempt, removed before the program starts.
    """

    name: str
    marker: Path
    process: Callable[[str], Process]
    result: Callable[[Path], dict[str, Any]] = lambda log: {}
    resumes: bool = False
    followers: "list[Job]" = field(default_factory=list)
    cost: float = 1.0
    ended: Callable[[], None] = field(default=lambda: None)
    clears: Sequence[Path] = ()

    @property
    def log(self) -> Path:
        """The file for the program's output."""
        return self.marker.with_suffix(".log")

    def clear(self) -> None:
        """Remove unfinished files and folders of an earlier attempt."""
        for path in self.clears:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @property
    def all(self) -> "list[Job]":
        """The job and all jobs that follow it, directly or indirectly."""
        return [self, *(each for follower in self.followers for each in follower.all)]


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file, or return None if it does not exist."""
    return files.read_json(path) if path.exists() else None


def is_finished(marker: Path) -> bool:
    """Return whether a job has succeeded."""
    result = read_json(marker)
    return result is not None and "failed" not in result


def unfinished(jobs: Sequence[Job], retry_failed: bool = True) -> list[Job]:
    """Return the jobs that can start: those without a result, and the followers of those with a result."""
    found = []
    for job in jobs:
        result = read_json(job.marker)
        if result is None or ("failed" in result and retry_failed):
            found.append(job)
        elif "failed" not in result:
            found += unfinished(job.followers, retry_failed)
    return found


class Running(Protocol):
    """A started program; see ``LocalProcess``."""

    def poll(self) -> str | None:
        """Return how the program ended, or None while it runs."""


class Launcher(Protocol):
    """Starts programs; see ``LocalLauncher``."""

    def start(self, job: Job, slot: str) -> Running | None:
        """Start the job's program in a slot."""

    def leave(self, running: Sequence[Any]) -> None:
        """End or leave the programs that still run."""


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
    """Starts and stops programs on this machine; those that run at the same time share its cores."""

    def __init__(self, side_by_side: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._environment = {"OMP_NUM_THREADS": str(max(1, cores // side_by_side)), **os.environ, "PATH": path}

    def start(self, job: Job, slot: str) -> LocalProcess | None:
        """Start a job, or return None if a program that an earlier, killed runner has started for it still runs."""
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
        return LocalProcess(warm_start.start(process.words, {**self._environment, **process.environment}, job.log))

    def leave(self, running: Sequence[LocalProcess]) -> None:
        """Terminate programs, and kill those that do not end in time."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for each in running:
                warm_start.send_signal(each.process, sent)
            deadline = time.monotonic() + _STOP_SECONDS
            for each in running:
                each.process.join(max(0.0, deadline - time.monotonic()))


def run(jobs: Sequence[Job], slots: Sequence[str], launcher: Launcher | None = None, retry_failed: bool = True) -> None:
    """Run all unfinished jobs, one in each slot at a time; followers of a job precede other jobs.

    The reason for a failure goes into the job's marker, and only the followers of that job are not run.

    Args:
        jobs: the jobs without their followers.
        slots: GPUs of each job that runs at the same time, as in CUDA_VISIBLE_DEVICES, "" for the CPU.
        launcher: starts the programs, by default on this machine.
        retry_failed: whether to run jobs again that failed earlier.
    """
    queue = _Queue(jobs, slots, launcher or LocalLauncher(len(slots)), retry_failed)
    try:
        queue.run()
    finally:
        queue.close()


class _Queue:
    """Waiting and running jobs, and the progress bar."""

    def __init__(self, jobs: Sequence[Job], slots: Sequence[str], launcher: Launcher, retry_failed: bool) -> None:
        self.waiting, self.free, self.launcher = unfinished(jobs, retry_failed), list(slots), launcher
        self.running: list[tuple[Job, str, Running]] = []
        self.retry_failed = retry_failed
        to_do = [each for job in self.waiting for each in job.all]
        self.total, self.done, self.failed = len(to_do), 0, 0
        skipped = sum(len(job.all) for job in jobs) - self.total
        self.bar = tqdm(
            total=sum(job.cost for job in to_do), desc=f"{skipped} done earlier" if skipped else "runs", mininterval=0,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
        )  # fmt: skip
        self._shown = time.monotonic()

    def run(self) -> None:
        while self.waiting or self.running:
            self._start()
            time.sleep(_POLL_SECONDS)
            for entry in list(self.running):
                ended = entry[2].poll()
                if ended is not None:
                    self.running.remove(entry)
                    self._finish(*entry[:2], ended)
            if time.monotonic() - self._shown > _SHOW_SECONDS:
                self._show()

    def _start(self) -> None:
        for job in list(self.waiting):
            if not self.free:
                return
            job.marker.parent.mkdir(parents=True, exist_ok=True)
            started = self.launcher.start(job, self.free[0])
            if started is not None:
                # The marker may hold an earlier attempt's failure.
                job.marker.unlink(missing_ok=True)
                self.waiting.remove(job)
                self.running.append((job, self.free.pop(0), started))

    def _finish(self, job: Job, slot: str, ended: str) -> None:
        self.free.append(slot)
        ended_jobs = [job]
        try:
            if ended:
                raise ValueError(f"{ended}: {last_line(job.log)}")
            result = job.result(job.log)
        except ValueError as error:
            result, line = {"failed": str(error)}, f"FAILED, {error} ({job.log})"
            ended_jobs = job.all
            self.failed += 1
        else:
            numbers = {name: value for name, value in result.items() if isinstance(value, (int, float))}
            line = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()) or "done"
            self.waiting[:0] = unfinished(job.followers, self.retry_failed)
        write_json(job.marker, result)
        job.ended()
        self.bar.write(f"{job.name}: {line}", file=sys.stderr)
        self.done += len(ended_jobs)
        self.bar.update(sum(each.cost for each in ended_jobs))
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        failed = f", {self.failed} failed" if self.failed else ""
        now = "".join(f"; {_progress(job)}" for job, _, _ in self.running[:2])
        self.bar.set_postfix_str(f"{self.done} of {self.total} runs{failed}{now}", refresh=True)

    def close(self) -> None:
        self.launcher.leave([running for _, _, running in self.running])
        self.bar.close()


def _progress(job: Job) -> str:
    records = [record for _, record in log_records(job.log, ["train_inner"], tail=True)]
    if not records:
        return job.name
    return f"{job.name}: {records[-1].get('num_updates', 0):.0f} updates, loss {records[-1].get('loss', 0):.2f}"
