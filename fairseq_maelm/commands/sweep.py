"""The command ``maelm sweep``."""

import argparse
import logging
import shlex
import signal
import sys
from typing import Any

from fairseq_maelm.launch.command_line import number_if_it_is_one
from fairseq_maelm.launch.machine import add_precision, machine_of
from fairseq_maelm.launch.recipes import FineTuningRecipe, read_recipes, recipe_type
from fairseq_maelm.options import add_output, existing_path, named, number
from fairseq_maelm.sweep.folder import sweep_folder
from fairseq_maelm.sweep.log import is_divergence
from fairseq_maelm.sweep.programs import add_runner_arguments, is_finished, runner_of

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command continues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm sweep``."""
    parser.description = (
        "Fine-tunes checkpoints on the grid of each recipe, with several runs in parallel. The same command continues "
        "after an interruption, and later commands can add recipes, checkpoints, seeds and values to the folder."
    )
    parser.add_argument(
        "recipes", nargs="+", type=recipe_type(FineTuningRecipe), metavar="RECIPE",
        help="YAML files, or names of the package's recipes, one for each task",
    )  # fmt: skip
    parser.add_argument(
        "--data", required=True, type=existing_path, metavar="FOLDER", help="folder that contains the tasks' folders"
    )
    parser.add_argument(
        "--checkpoint", required=True, action="append", type=named, metavar="NAME=PATH",
        help="name and checkpoint (a file or a run directory) of a model to fine-tune; repeat the option for further "
        "models. NAME=random: random weights, with the sizes of the first checkpoint; NAME=random:OTHER: random "
        "weights, with the sizes of the checkpoint named OTHER",
    )  # fmt: skip
    add_output(parser, "folder of the sweep")
    parser.add_argument("--seeds", type=number(int, 1), default=5, metavar="N", help="runs per setting")
    parser.add_argument(
        "--only", nargs="+", type=_choice, action="extend", default=[], metavar="NAME=VALUE",
        help="part of the grid to run, such as: lr=2e-5 epochs=3,5",
    )  # fmt: skip
    parser.add_argument(
        "--large",
        action="store_true",
        help="search the grids for large models (search_large in the recipes instead of search)",
    )
    parser.add_argument(
        "--options", type=shlex.split, default=[], metavar="OPTIONS",
        help="options of fairseq-train for all runs, as one quoted argument: --options='--pooler-dropout 0.1'",
    )  # fmt: skip
    parser.add_argument(
        "--keep-checkpoints", choices=("none", "best", "all"),
        help="checkpoints of finished runs to keep: none, the best of each task and model, or all (default: none of "
        "the new runs, and what earlier commands have kept)",
    )  # fmt: skip
    add_precision(parser)
    parser.add_argument("--threads", type=number(int, 1), default=1, metavar="N", help="number of CPU threads per run")
    add_runner_arguments(parser)


def _choice(text: str) -> tuple[str, tuple[Any, ...]]:
    """Parse a part of the grid, such as "lr=2e-5" or "epochs=2,3", into its name and values."""
    name, values = named(text)
    return name, tuple(number_if_it_is_one(value) for value in values.split(","))


def run(args: argparse.Namespace) -> None:
    """Run the sweep, and print its table, even after an interruption.

    Raises:
        ValueError: an option or an input is wrong, or runs failed; diverged runs count as results.
    """
    # Imported here because they take seconds and --help does not need them.
    from fairseq_maelm.sweep.grid import Sweep, tidy
    from fairseq_maelm.sweep.report import write_report

    runner = runner_of(args)
    # A run has at most one GPU.
    machine = machine_of(min(1, runner.gpus), args.precision, args.threads)
    sweep = Sweep(args, read_recipes(args.recipes), machine)
    programs = sweep.programs()
    if runner.dry_run:
        runner.run(programs)
        finished = sum(is_finished(program.marker) for program in programs)
        sys.stdout.write(
            f"# {len(programs):,} runs, {finished:,} of them finished; in total they train on {sweep.examples():,} "
            "examples\n"
        )
        return
    # A scheduler's SIGTERM acts like Ctrl-C: programs are stopped too, and the table is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with sweep_folder(args.output, sweep.settings()):
        tidy(args.output, args.keep_checkpoints or "all")
        logger.info("%d runs; logs in %s", len(programs), args.output / "runs")
        try:
            failed = runner.run(programs)
        finally:
            sys.stdout.write(write_report(args.output))
    runner.refuse({name: reason for name, reason in failed.items() if not is_divergence(reason)})
