"""Running the study's programs side by side: progress, failures that stop nothing else, interruption."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages import Process
from study import is_finished, write_json
from tqdm import tqdm

_RECORD = re.compile(r"\| INFO \| (\w+) \| (\{.*\})\s*$")
_TAIL_BYTES = 65536
_POLL_SECONDS = 0.2
_STOP_SECONDS = 20


@dataclass
class Job:
    """A program whose result is worth keeping.

    Attributes:
        name: for people.
        marker: gets the result, or the reason of a failure.
        process: makes the command for a slot (a list of GPUs, "" for the CPU).
        result: reads the result from the log; raises ValueError if the run went wrong though it ended well.
        resumes: whether the program goes on from what it saved; its log is then continued too.
        followers: what can be done after it has succeeded.
    """

    name: str
    marker: Path
    process: Callable[[str], Process]
    result: Callable[[Path], dict[str, Any]]
    resumes: bool = False
    followers: "list[Job]" = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The file for the program's output."""
        return self.marker.with_suffix(".log")


def log_records(log: Path, kind: str, tail: bool = False) -> Iterator[dict[str, float]]:
    """Yield the figures that fairseq wrote into a log with ``--log-format json``, those that are numbers.

    Args:
        log: may be missing, or still be written.
        kind: of record: "train_inner", "train" or "valid".
        tail: look at the end of the log only.
    """
    if not log.exists():
        return
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES) if tail else 0)
        for line in stream.read().decode("utf-8", errors="replace").splitlines():
            found = _RECORD.search(line)
            if found and found[1] == kind:
                with contextlib.suppress(json.JSONDecodeError):
                    yield _numbers(json.loads(found[2]))


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in record.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = float(value)
    return numbers


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """What can be started: jobs without a result, and those that follow jobs with one."""
    return [ready for job in jobs for ready in (unfinished(job.followers) if is_finished(job.marker) else [job])]


def count(jobs: Sequence[Job]) -> int:
    """The number of jobs with all that follow them."""
    return sum(1 + count(job.followers) for job in jobs)


def run(jobs: Sequence[Job], slots: Sequence[str]) -> None:
    """Run what is not finished, one job in each slot at a time; what follows a job comes before other jobs.

    A job that fails leaves its reason in its marker and keeps back its followers only.

    Args:
        jobs: what to do.
        slots: for each job that runs at the same time its GPUs, as in CUDA_VISIBLE_DEVICES, "" for the CPU.
    """
    waiting, free = unfinished(jobs), list(slots)
    running: dict[subprocess.Popen[bytes], tuple[Job, str]] = {}
    total = count(waiting)
    skipped = count(jobs) - total
    bar = tqdm(total=total, desc=f"{skipped} finished earlier" if skipped else "runs", unit=" runs")
    try:
        while waiting or running:
            while waiting and free:
                job, slot = waiting.pop(0), free.pop(0)
                running[_start(job, slot, len(slots))] = (job, slot)
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                job, slot = running.pop(process)
                free.append(slot)
                line, succeeded = _finish(job, process.returncode)
                bar.write(f"{job.name}: {line}", file=sys.stdout)
                if succeeded:
                    waiting[:0] = unfinished(job.followers)
                bar.update(1 if succeeded else count([job]))
            bar.set_postfix_str("; ".join(_progress(job) for job, _ in running.values()), refresh=False)
    finally:
        _stop(list(running))
        bar.close()


def _start(job: Job, slot: str, side_by_side: int) -> "subprocess.Popen[bytes]":
    process = job.process(slot)
    job.marker.parent.mkdir(parents=True, exist_ok=True)
    # A failure of an earlier attempt is no longer true.
    job.marker.unlink(missing_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {
        # Threads that spin while they wait cost half the speed as soon as another program wants a core.
        "OMP_NUM_THREADS": str(max(1, cores // side_by_side)), "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ, **process.environment,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }  # fmt: skip
    with open(job.log, "ab" if job.resumes else "wb") as log:
        log.write(f"$ {process}\n".encode())
        log.flush()
        # A group of its own, so that the processes that it starts can be stopped with it.
        return subprocess.Popen(
            process.words,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _finish(job: Job, status: int) -> tuple[str, bool]:
    try:
        if status:
            raise ValueError(f"exit status {status}: {_last_line(job.log)}")
        result = job.result(job.log)
    except ValueError as error:
        write_json(job.marker, {"failed": str(error)})
        return f"FAILED, {error} ({job.log})", False
    write_json(job.marker, result)
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items() if value is not None), True


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")[:300]


def _progress(job: Job) -> str:
    records = list(log_records(job.log, "train_inner", tail=True))
    if not records:
        return job.name
    return f"{job.name} {records[-1]['num_updates']:.0f} updates, loss {records[-1]['loss']:.2f}"


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def best(log: Path, figure: str) -> dict[str, Any]:
    """The result of a fine-tuning: the best of its validations, as checkpoint_best.pt would have it.

    Raises:
        ValueError: there is no finite figure.
    """
    values = [record[figure] for record in log_records(log, "valid") if math.isfinite(record.get(figure, math.nan))]
    if not values:
        raise ValueError(f"no finite {figure} in the log")
    return {"score": max(values)}


def last_loss(log: Path) -> dict[str, Any]:
    """The result of a pretraining: loss on held-out text in bits per predicted token, and speed.

    Raises:
        ValueError: it was never validated, or has diverged.
    """
    records = list(log_records(log, "valid"))
    if not records:
        raise ValueError("no validation in the log")
    loss = records[-1].get("valid_loss", math.nan)
    if not math.isfinite(loss):
        raise ValueError(f"diverged: the loss on held-out text is {loss}")
    speeds = sorted(record["ups"] for record in log_records(log, "train_inner") if record.get("ups", 0.0) > 0.0)
    return {"loss": loss, "updates_per_second": speeds[len(speeds) // 2] if speeds else None}
