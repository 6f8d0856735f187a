"""Where the programs of a study run, and running them: what all commands of many runs share."""

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairseq_maelm.arguments import UsageError, number
from fairseq_maelm.sweep.jobs import Job, Launcher, is_finished, read_json, run
from fairseq_maelm.sweep.slurm import SlurmLauncher, parse_parameters
from fairseq_maelm.train_command import add_dry_run

# Jobs that wait or run in SLURM's queue at the same time.
_SUBMITTED = 100


def _gpus(text: str) -> str:
    if not all(each.isdecimal() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers with commas between them")
    return text


def add_runner_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where programs run, and whether those that failed run again."""
    group = parser.add_argument_group("where the programs run")
    group.add_argument(
        "--jobs", type=number(int, 1), metavar="N",
        help="programs side by side on the CPU (1 by default), or with --slurm the number of jobs in the queue (100)",
    )  # fmt: skip
    group.add_argument(
        "--gpus", nargs="+", type=_gpus, default=[], metavar="LIST",
        help="a program on each of these GPUs at a time: '0 1' is two programs, '0 0 0' puts three on one GPU, and "
        "'0,1 2,3' gives each of two programs two GPUs, where it can use them",
    )  # fmt: skip
    group.add_argument(
        "--slurm", nargs="*", metavar="NAME=VALUE",
        help="submit to SLURM, with submitit's parameters, such as: partition=gpu gpus_per_node=1 timeout_min=120",
    )  # fmt: skip
    group.add_argument("--retry-failed", action="store_true", help="try programs again that failed or diverged")
    add_dry_run(group, "write the commands")


class Runner(NamedTuple):
    """Where programs run.

    Attributes:
        slots: for each that runs at the same time its GPUs with commas between them, or "".
        gpus: of each program.
        launcher: that starts them; this machine's if it is None.
        retry_failed: whether programs are tried again that failed earlier.
        dry_run: whether commands are only written.
    """

    slots: list[str]
    gpus: int
    launcher: Launcher | None
    retry_failed: bool
    dry_run: bool

    def do(self, jobs: Sequence[Job]) -> None:
        """Do what is not done yet, and what follows it; in a dry run write the commands.

        Raises:
            ValueError: a program has no result; all others were done all the same.
        """
        every = [each for job in jobs for each in job.all]
        if self.dry_run:
            for each in every:
                done = " (finished)" if is_finished(each.marker) else ""
                sys.stdout.write(f"# {each.name}{done}\n{each.process(self.slots[0])}\n")
            return
        run(jobs, self.slots, self.launcher, self.retry_failed)
        refuse(without_result(every), self.retry_failed)


def runner_of(args: argparse.Namespace, most_gpus: int = 1, jobs: int = 1) -> Runner:
    """Read what ``add_runner_arguments`` declared.

    Args:
        args: of the command line.
        most_gpus: that a program can use.
        jobs: side by side on the CPU, unless --jobs says more.

    Raises:
        ValueError: arguments contradict each other, or SLURM cannot be used.
    """
    if args.gpus and (args.jobs or args.slurm is not None):
        raise UsageError("--gpus has a run on each of this machine's GPUs: give neither --jobs nor --slurm with it")
    numbers = {len(slot.split(",")) for slot in args.gpus} or {0}
    if len(numbers) > 1:
        raise UsageError("--gpus: every process needs the same number of GPUs, or rows would see data in another order")
    gpus, slots, launcher = numbers.pop(), args.gpus or [""] * (args.jobs or jobs), None
    if args.slurm is not None:
        parameters = parse_parameters(args.slurm)
        gpus, slots = int(parameters.get("gpus_per_node", 0)), [""] * (args.jobs or _SUBMITTED)
        launcher = SlurmLauncher(parameters)
    if gpus > most_gpus:
        raise UsageError(
            f"a run has {most_gpus} GPU{'s' * (most_gpus > 1)} at most: write --gpus 0 1 for a run on each of two, and "
            f"--slurm gpus_per_node={most_gpus}"
        )
    return Runner(slots, gpus, launcher, args.retry_failed, args.dry_run)


def without_result(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the name of each job without a result -> the reason."""
    without = [job for job in jobs if not is_finished(job.marker)]
    return {job.name: str((read_json(job.marker) or {}).get("failed", "not run")) for job in without}


def refuse(failed: dict[str, str], retries: bool) -> None:
    """Raise a ValueError for jobs without a result; ``retries``: the same command tries them again by itself."""
    if failed:
        name, reason = next(iter(failed.items()))
        again = "the same command" if retries else "--retry-failed"
        raise ValueError(f"{len(failed)} runs have no result ({name}: {reason}); {again} tries them again")


@contextlib.contextmanager
def sitting(program: str) -> Iterator[None]:
    """Do a part of long work that the same command takes up again: stopped or refused, it says so in a line.

    Raises:
        SystemExit: 130 when interrupted, by Ctrl-C or SIGTERM; with the message of an OSError or a ValueError.
    """
    # fairseq, once imported, lets every library's debugging messages through.
    logging.getLogger().setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command goes on from here\n")
        raise SystemExit(130) from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"{program}: error: {error}") from error
