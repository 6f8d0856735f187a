"""Run programs side by side, here or by SLURM through submitit (the extra ``slurm``); continue after failures.

The result of each finished program is stored in a small file, its marker, so that later calls skip the program.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.launch.command_line import number_if_it_is_one
from fairseq_maelm.launch.machine import add_dry_run, count_gpus
from fairseq_maelm.options import UsageError, available_cores, named, number
from fairseq_maelm.sweep.log import is_divergence, last_line

logger = logging.getLogger(__name__)

_POLL_SECONDS, _STOP_SECONDS = 0.2, 20
_SUBMITTED = 100  # largest number of jobs that wait or run in SLURM's queue
# submitit's parameters for all types of cluster; names of other parameters begin with "slurm_".
_SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")
_DEFAULTS: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 4, "name": "maelm_sweep"}


@dataclass(eq=False)
class Program:
    """A program with a result; ``name`` is shown in messages."""

    name: str
    marker: Path  # the JSON file with the result or the reason for a failure
    words: Sequence[str]  # the command line
    result: Callable[[Path], dict[str, Any]] = lambda log: {}  # raises a ValueError if the log shows a failure
    resumes: bool = False  # whether it continues from a saved state; if so, its earlier log is kept
    ended: Callable[[], None] = lambda: None  # called after the marker is written
    environment: Mapping[str, str] = field(default_factory=dict)  # variables to add

    @property
    def log(self) -> Path:
        """The file for the program's output."""
        return self.marker.with_suffix(".log")

    def command(self, gpus: str) -> list[str]:
        """Return the command line on ``gpus``, ids separated by commas, or "" for the CPU."""
        added = {**self.environment, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})}
        pairs = [f"{name}={value}" for name, value in added.items()]
        return [*(["env", *pairs] if pairs else []), *self.words]


def read_marker(path: Path) -> dict[str, Any] | None:
    """Return the content of a marker, or None if it does not exist."""
    # Not by asking first: another thread may start the program again, and delete its marker.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return read_json(path)
    return None


def is_finished(marker: Path) -> bool:
    """Return whether a program has succeeded."""
    result = read_marker(marker)
    return result is not None and "failed" not in result


def _execute(
    words: list[str], log: Path, resumes: bool, sharing: int = 1, stopped: threading.Event | None = None
) -> str:
    """Run a program until it ends or is stopped; return "" after exit status 0, or else the reason for the failure."""
    stopped = stopped or threading.Event()
    # Waiting threads that spin halve the speed when other programs run.
    shared = {"OMP_NUM_THREADS": str(max(1, available_cores() // sharing)), "OMP_WAIT_POLICY": "PASSIVE"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    with open(log, "ab") as stream:
        # The program inherits the lock on its log, so one that has outlived a killed sweep is waited for.
        while not _locked(stream.fileno()):
            if stopped.wait(_POLL_SECONDS):
                return "stopped"
        if not resumes:
            stream.truncate(0)
        stream.write(f"$ {shlex.join(words)}\n".encode())
        stream.flush()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            env={**shared, **os.environ, "PATH": path},
        )  # fmt: skip
    while process.poll() is None and not stopped.wait(_POLL_SECONDS):
        pass
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if process.poll() is None:
                os.killpg(process.pid, sent)
                process.wait(_STOP_SECONDS)
    status = process.returncode or 0
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}" if status else ""


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # any other one means that the file system has no locks
        return not isinstance(error, BlockingIOError)
    return True


class _Slurm:
    """Runs programs as SLURM jobs; those in the queue outlive the sweep, and a restarted one finds them."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ValueError("--slurm needs submitit: pip install 'fairseq_maelm[slurm]'") from error
        given = dict(parameters)
        self.cluster = str(given.pop("cluster", "slurm"))
        classes = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
        if self.cluster not in classes:
            raise UsageError(f"--slurm cluster={self.cluster}: choose from {' and '.join(classes)}")
        self._job_class = classes[self.cluster]
        self._make = submitit.AutoExecutor
        self._parameters = {
            name if name in _SHARED or name.startswith("slurm_") else f"slurm_{name}": value
            for name, value in {**_DEFAULTS, **given}.items()
        }
        # submitit asks SLURM about all jobs at once, and threads must not do so at the same time.
        self._lock = threading.Lock()
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError("--slurm: there is no SLURM on this machine (no srun); run it on a login node")
        self._executor(Path("."))

    def _executor(self, folder: Path) -> Any:
        executor = self._make(folder=folder, cluster=self.cluster)
        try:
            executor.update_parameters(**self._parameters)
        except (AssertionError, NameError, TypeError) as error:
            raise ValueError(f"--slurm: {error}") from error
        return executor

    def execute(self, program: Program, gpus: str, resumes: bool, stopped: threading.Event) -> str:
        """Return what ``_execute`` returns in the program's job; when ``stopped``, leave the job in the queue."""
        record = program.marker.with_suffix(".submitted.json")
        with self._lock:
            job = self._submitted(program, gpus, resumes, record)
        while not self._is_done(job):
            if stopped.wait(_POLL_SECONDS):
                logger.info("the job %s continues without this process; to stop it: scancel %s", *2 * [job.job_id])
                return "stopped"
        try:
            ended = str(job.result())
        except Exception as error:  # submitit raises the job's own exceptions
            lines = str(error).strip().splitlines() or ["no message"]
            ended = f"the job {job.job_id} ended without a result ({job.state}: {lines[0]}; {job.paths.stderr})"
        record.unlink(missing_ok=True)
        return ended

    def _is_done(self, job: Any) -> bool:
        with self._lock:
            return bool(job.done())

    def _submitted(self, program: Program, gpus: str, resumes: bool, record: Path) -> Any:
        """Find the job that an earlier sweep has submitted, or submit one."""
        # Named after the marker, because a folder may have the markers of several programs.
        folder, earlier = program.marker.with_suffix(".submitit"), read_marker(record)
        if earlier is not None and earlier["cluster"] == self.cluster:
            found = self._job_class(folder=folder, job_id=earlier["job"])
            if found.paths.result_pickle.exists() or not found.done():
                return found
        # Process ids are reused, and the names of result files contain them.
        shutil.rmtree(folder, ignore_errors=True)
        job = self._executor(folder).submit(_execute, program.command(gpus), program.log, resumes)
        write_json(record, {"cluster": self.cluster, "job": job.job_id})
        return job


def _gpus(text: str) -> str:
    if not all(each.isdecimal() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers separated by commas")
    return text


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that ``runner_of`` reads."""
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--jobs", type=number(int, 1), metavar="N",
        help="number of programs to run in parallel on the CPU (default: 1); with --slurm, number of jobs in the "
        "queue (default: 100)",
    )  # fmt: skip
    group.add_argument(
        "--gpus", nargs="+", type=_gpus, default=[], metavar="LIST",
        help="GPUs of each parallel program: '0 1' runs two programs, '0 0 0' three on one GPU, and '0,1 2,3' two "
        "programs with two GPUs each, if the programs can use several",
    )  # fmt: skip
    group.add_argument(
        "--slurm", nargs="*", type=named, metavar="NAME=VALUE",
        help="submit to SLURM with submitit's parameters, such as: partition=gpu gpus_per_node=1 timeout_min=120",
    )  # fmt: skip
    group.add_argument("--retry-failed", action="store_true", help="rerun programs that failed or diverged")
    add_dry_run(group, "print the commands")


class Runner(NamedTuple):
    """The settings for running programs."""

    slots: Sequence[str]  # the GPUs of each parallel program, separated by commas, or ""
    gpus: int = 0  # number of GPUs of each program
    slurm: _Slurm | None = None  # None for this machine
    retry_failed: bool = True  # whether to rerun programs that failed earlier
    dry_run: bool = False  # whether to print the commands instead of running them

    def run(self, programs: Sequence[Program]) -> dict[str, str]:
        """Run all unfinished programs in order; return name -> reason for each without a result, as in its marker.

        In a dry run, print the commands of all, and return {}.
        """
        if self.dry_run:
            for each in programs:
                note = " (finished)" if is_finished(each.marker) else ""
                sys.stdout.write(f"# {each.name}{note}\n{shlex.join(each.command(self.slots[0]))}\n")
            return {}
        unfinished = [each for each in programs if not is_finished(each.marker)]
        waiting = [each for each in unfinished if self.retry_failed or not each.marker.exists()]
        stopped, free, done = threading.Event(), queue.SimpleQueue[str](), len(programs) - len(waiting)
        for slot in self.slots:
            free.put(slot)
        with (
            ThreadPoolExecutor(len(self.slots)) as pool,
            tqdm(total=len(programs), initial=done, unit="run", disable=None) as bar,
        ):
            if done:
                bar.write(f"{done} of {len(programs)} runs done earlier", sys.stderr)
            try:
                running = {pool.submit(self._execute, each, free, stopped): each for each in waiting}
                for number, future in enumerate(as_completed(running), done + 1):
                    line = _finish(running[future], future.result())
                    bar.write(f"[{number}/{len(programs)}] {line}", sys.stderr)
                    bar.update()
            finally:
                stopped.set()
                pool.shutdown(cancel_futures=True)
        failed = {each.name: (read_marker(each.marker) or {}).get("failed") for each in unfinished}
        return {name: reason for name, reason in failed.items() if reason is not None}

    def do(self, programs: Sequence[Program]) -> None:
        """Run all unfinished programs; raise a ValueError if any has no result."""
        self.refuse(self.run(programs))

    def refuse(self, failed: Mapping[str, str]) -> None:
        """Raise a ValueError if any program has no result; ``failed`` has the names and reasons."""
        if failed:
            name, reason = next(iter(failed.items()))
            again = "the same command" if self.retry_failed else "--retry-failed"
            what, them = (f"{len(failed)} runs have", "them") if len(failed) > 1 else ("1 run has", "it")
            raise ValueError(f"{what} no result ({name}: {reason}); {again} runs {them} again")

    def _execute(self, program: Program, free: "queue.SimpleQueue[str]", stopped: threading.Event) -> str:
        slot = free.get()
        try:
            program.marker.parent.mkdir(parents=True, exist_ok=True)
            earlier = str((read_marker(program.marker) or {}).get("failed"))
            # With the log of a divergence, the next attempt would count as diverged too.
            resumes = program.resumes and not is_divergence(earlier)
            program.marker.unlink(missing_ok=True)
            if self.slurm is not None:
                return self.slurm.execute(program, slot, resumes, stopped)
            return _execute(program.command(slot), program.log, resumes, len(self.slots), stopped)
        finally:
            free.put(slot)


def _finish(program: Program, ended: str) -> str:
    """Write the marker of a program that has ended, and return a line about it."""
    try:
        if ended:
            raise ValueError(f"{ended}: {last_line(program.log)}")
        result = program.result(program.log)
    except ValueError as error:
        result, line = {"failed": str(error)}, f"FAILED, {error} ({program.log})"
    else:
        numbers = {name: value for name, value in result.items() if isinstance(value, (int, float))}
        line = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()) or "done"
    write_json(program.marker, result)
    program.ended()
    return f"{program.name}: {line}"


def runner_of(args: argparse.Namespace, most_gpus: int = 1) -> Runner:
    """Read the options of ``add_runner_arguments`` for programs that use at most ``most_gpus`` GPUs."""
    if args.gpus and (args.jobs or args.slurm is not None):
        raise UsageError("--gpus already sets the number of parallel runs: give neither --jobs nor --slurm with it")
    numbers = {len(slot.split(",")) for slot in args.gpus} or {0}
    if len(numbers) > 1:
        raise UsageError("--gpus: give each program the same number of GPUs, since the order of the data depends on it")
    gpus, slots, slurm = numbers.pop(), args.gpus or [""] * (args.jobs or 1), None
    if args.slurm is not None:
        parameters = {name: number_if_it_is_one(value) for name, value in args.slurm}
        gpus, slots = int(parameters.get("gpus_per_node", 0)), [""] * (args.jobs or _SUBMITTED)
        slurm = _Slurm(parameters)
    if gpus > most_gpus:
        raise UsageError(
            f"a run has at most {most_gpus} GPU{'s' * (most_gpus > 1)}: write --gpus 0 1 for two parallel runs, or "
            f"--slurm gpus_per_node={most_gpus}"
        )
    if args.gpus:
        count_gpus(1, only_show=args.dry_run)
    return Runner(slots, gpus, slurm, args.retry_failed, args.dry_run)


@contextlib.contextmanager
def sitting(program: str) -> Iterator[None]:
    """Run a block of a resumable command; interruptions (exit status 130) and errors end it with one line."""
    # Importing fairseq enables the debugging messages of all libraries.
    logging.getLogger().setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command continues\n")
        raise SystemExit(130) from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"{program}: error: {error}") from error
