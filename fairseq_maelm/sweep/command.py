"""The sub-command ``maelm sweep``."""

import argparse
import shlex
import signal
import sys
from pathlib import Path
from typing import Optional

from fairseq_maelm.finetuning.recipe import read_recipes
from fairseq_maelm.sweep.checkpoints import KEEP
from fairseq_maelm.sweep.grid import parse_choice
from fairseq_maelm.sweep.jobs import Launcher, is_finished
from fairseq_maelm.sweep.log import is_divergence
from fairseq_maelm.sweep.report import write_report
from fairseq_maelm.sweep.slurm import SlurmLauncher, parse_parameters
from fairseq_maelm.sweep.store import SweepFolder
from fairseq_maelm.sweep.sweep import Plan, make_plan, read_models, run_plan
from fairseq_maelm.train_command import PRECISIONS, Machine

# Jobs that wait or run in SLURM's queue at the same time.
_SUBMITTED = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm sweep``."""
    parser.description = (
        "Fine-tunes checkpoints on the grid of each recipe, several runs side by side. The same command goes on after "
        "an interruption, and more recipes, checkpoints, seeds and values can be added to a folder later."
    )
    parser.add_argument(
        "recipes",
        nargs="+",
        type=Path,
        metavar="RECIPE",
        help="YAML files, or names of the package's recipes, one for each task",
    )
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER", help="with the folders of the tasks")
    parser.add_argument(
        "--checkpoint", required=True, action="append", type=_named, metavar="NAME=PATH",
        help="of pretraining, once for each model; NAME=random for random weights of the size of the first, "
        "NAME=random:OTHER of the size of another",
    )  # fmt: skip
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the sweep")
    parser.add_argument("--seeds", type=_at_least_1, default=5, metavar="N", help="runs of each setting (5)")
    parser.add_argument(
        "--only", nargs="+", type=_choice, action="extend", default=[], metavar="NAME=VALUE",
        help="a part of the grid, such as: lr=2e-5 epochs=3,5",
    )  # fmt: skip
    parser.add_argument("--large", action="store_true", help="take search_large of the recipes")
    parser.add_argument(
        "--options", type=shlex.split, default=[], metavar="OPTIONS",
        help="more of fairseq-train's for all runs, in one word: --options='--pooler-dropout 0.1'",
    )  # fmt: skip
    parser.add_argument("--retry-failed", action="store_true", help="try runs again that failed or diverged")
    parser.add_argument(
        "--keep-checkpoints", choices=KEEP, default="none",
        help="of finished runs: none, the best of each task and model, or all (none)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="check everything, write the commands, train nothing")
    _add_machine(parser)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where the runs are computed")
    group.add_argument(
        "--jobs", type=_at_least_1, metavar="N",
        help="runs side by side on the CPU (1), or with --slurm the number of jobs in the queue (100)",
    )  # fmt: skip
    group.add_argument(
        "--gpus", type=_gpus, default=[], metavar="LIST",
        help="GPUs of this machine with a run on each at a time, such as 0,1; 0,0,0 puts three on one",
    )  # fmt: skip
    group.add_argument(
        "--slurm", nargs="*", metavar="NAME=VALUE",
        help="submit to SLURM, with submitit's parameters, such as: partition=gpu gpus_per_node=1 timeout_min=120",
    )  # fmt: skip
    group.add_argument("--precision", choices=PRECISIONS, help="fp16 on GPUs, fp32 without")
    group.add_argument("--threads", type=_at_least_1, default=1, metavar="N", help="of each run (1)")


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, value


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def _choice(text: str) -> tuple[str, tuple[object, ...]]:
    try:
        return parse_choice(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _gpus(text: str) -> list[str]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers with commas between them")
    return numbers


def run(args: argparse.Namespace) -> None:
    """Runs the sweep and writes its table, as far as it is, to standard output.

    Raises:
        ValueError: something must be put right first, or runs failed; those that diverged are a result.
    """
    plan, launcher = _plan(args)
    if args.dry_run:
        _show(plan, SweepFolder(args.output))
        return
    slots = args.gpus or [""] * (args.jobs or (1 if launcher is None else _SUBMITTED))
    # Stopped by a system or a scheduler as by Ctrl-C: what runs is stopped too, and the table is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        without = run_plan(plan, args.output, slots, launcher, args.retry_failed)
    except KeyboardInterrupt:
        sys.stdout.write(write_report(args.output, draws=False))
        raise
    sys.stdout.write(write_report(args.output, draws=False))
    failed = {name: reason for name, reason in without.items() if not is_divergence(reason)}
    if failed:
        name, reason = next(iter(failed.items()))
        raise ValueError(f"{len(failed)} runs have no result ({name}: {reason}); --retry-failed tries them again")


def _plan(args: argparse.Namespace) -> tuple[Plan, Optional[Launcher]]:
    if args.gpus and (args.jobs or args.slurm is not None):
        raise ValueError("--gpus has a run on each of this machine's GPUs: give neither --jobs nor --slurm with it")
    launcher, gpu = None, bool(args.gpus)
    if args.slurm is not None:
        parameters = parse_parameters(args.slurm)
        launcher, gpu = SlurmLauncher(parameters), int(parameters.get("gpus_per_node", 0)) > 0
        if int(parameters.get("gpus_per_node", 0)) > 1:
            raise ValueError("--slurm gpus_per_node: a run has one GPU at most")
    machine = Machine(gpu, args.precision or ("fp16" if gpu else "fp32"), args.threads)
    if machine.precision == "fp16" and not gpu:
        raise ValueError("--precision fp16 needs GPUs: give --gpus, or --slurm gpus_per_node=1")
    recipes = read_recipes(args.recipes)
    choices: dict[str, tuple[object, ...]] = {}
    for name, values in args.only:
        choices[name] = (*choices.get(name, ()), *values)
    models = read_models(args.checkpoint)
    plan = make_plan(
        recipes, args.data, models, args.seeds, choices, args.large, machine, args.options, args.keep_checkpoints
    )
    return plan, launcher


def _show(plan: Plan, folder: SweepFolder) -> None:
    finished = 0
    for each in plan.runs:
        done = is_finished(folder.marker(each))
        finished += done
        heading = f"# {each}{' (finished)' if done else ''}"
        sys.stdout.write(f"{heading}\n{plan.process(each, folder, '')}\n")
    examples = sum(map(plan.examples, plan.runs))
    sys.stdout.write(
        f"# {len(plan.runs):,} runs, {finished:,} of them finished; they train on {examples:,} examples in all\n"
    )
