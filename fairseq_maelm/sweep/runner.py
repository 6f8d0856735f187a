"""Options and functions for all commands with many runs: where and how the programs run."""

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fairseq_maelm.launch.machine import add_dry_run
from fairseq_maelm.options import UsageError, number
from fairseq_maelm.sweep.jobs import Job, is_finished, read_json, run
from fairseq_maelm.sweep.slurm import SlurmLauncher, parse_parameters

# Largest number of jobs that wait or run in SLURM's queue.
_SUBMITTED = 100


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
        "--slurm", nargs="*", metavar="NAME=VALUE",
        help="submit to SLURM with submitit's parameters, such as: partition=gpu gpus_per_node=1 timeout_min=120",
    )  # fmt: skip
    group.add_argument("--retry-failed", action="store_true", help="rerun programs that failed or diverged")
    add_dry_run(group, "print the commands")


class Runner(NamedTuple):
    """The settings for running programs."""

    slots: list[str]  # the GPUs of each parallel program, separated by commas, or ""
    gpus: int  # number of GPUs of each program
    launcher: Any  # None for this machine
    retry_failed: bool  # whether to rerun programs that failed earlier
    dry_run: bool  # whether to print the commands instead of running them

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all unfinished jobs."""
        run(jobs, self.slots, self.launcher, self.retry_failed)

    def do(self, jobs: Sequence[Job]) -> None:
        """Run all unfinished jobs; in a dry run, print the commands of all jobs.

        Raises:
            ValueError: a job has no result; raised only after all other jobs have run.
        """
        if self.dry_run:
            for each in jobs:
                done = " (finished)" if is_finished(each.marker) else ""
                sys.stdout.write(f"# {each.name}{done}\n{each.process(self.slots[0])}\n")
            return
        self.run(jobs)
        refuse(without_result(jobs), self.retry_failed)


def runner_of(args: argparse.Namespace, most_gpus: int = 1) -> Runner:
    """Read the options of ``add_runner_arguments`` for programs that use at most ``most_gpus`` GPUs.

    Raises:
        ValueError: options contradict each other, or SLURM cannot be used.
    """
    if args.gpus and (args.jobs or args.slurm is not None):
        raise UsageError("--gpus already sets the number of parallel runs: give neither --jobs nor --slurm with it")
    numbers = {len(slot.split(",")) for slot in args.gpus} or {0}
    if len(numbers) > 1:
        raise UsageError("--gpus: give each program the same number of GPUs, since the order of the data depends on it")
    gpus, slots, launcher = numbers.pop(), args.gpus or [""] * (args.jobs or 1), None
    if args.slurm is not None:
        parameters = parse_parameters(args.slurm)
        gpus, slots = int(parameters.get("gpus_per_node", 0)), [""] * (args.jobs or _SUBMITTED)
        launcher = SlurmLauncher(parameters)
    if gpus > most_gpus:
        raise UsageError(
            f"a run has at most {most_gpus} GPU{'s' * (most_gpus > 1)}: write --gpus 0 1 for two parallel runs, or "
            f"--slurm gpus_per_node={most_gpus}"
        )
    if args.gpus and not args.dry_run:
        import torch  # takes seconds

        if not torch.cuda.device_count():
            raise UsageError("--gpus is given, but torch finds no GPU here: omit --gpus, or give --jobs instead")
    return Runner(slots, gpus, launcher, args.retry_failed, args.dry_run)


def without_result(jobs: Sequence[Job]) -> dict[str, str]:
    """Return name -> reason for each job without a result."""
    without = [job for job in jobs if not is_finished(job.marker)]
    return {job.name: str((read_json(job.marker) or {}).get("failed", "not run")) for job in without}


def refuse(failed: dict[str, str], retries: bool) -> None:
    """Raise a ValueError if any job has no result; ``retries`` tells whether the same command reruns failed jobs."""
    if failed:
        name, reason = next(iter(failed.items()))
        again = "the same command" if retries else "--retry-failed"
        what, them = f"{len(failed)} runs have no result", "them"
        if len(failed) == 1:
            what, them = "1 run has no result", "it"
        raise ValueError(f"{what} ({name}: {reason}); {again} runs {them} again")


@contextlib.contextmanager
def sitting(program: str) -> Iterator[None]:
    """Run a block of a long, resumable command, and report interruptions and errors in one line.

    Raises:
        SystemExit: 130 after Ctrl-C or SIGTERM, or with the message of an OSError or a ValueError.
    """
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
