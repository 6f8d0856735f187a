#!/usr/bin/env python3
"""Do what a plan declares for rows, tasks and seeds, such as pretrainings with other options, and write its tables.

The same command continues after an interruption. Rows, tasks and seeds can be added to a study later.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import study  # first, because it finds the package

from fairseq_maelm.options import CommandParser, number
from fairseq_maelm.sweep.folder import data_fingerprint, study_folder
from fairseq_maelm.sweep.plan import Plan, Steps
from fairseq_maelm.sweep.runner import add_runner_arguments, runner_of, sitting
from fairseq_maelm.training.options import add_precision, machine_of

# Of one machine, for pretraining.
_MOST_GPUS = 16


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.translate(str.maketrans("", "", "-_.")).isalnum() and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("plan", type=Path, help="declaration of the rows, such as examples/ablations/plan.yaml")
    parser.add_argument("data", help="folder of `maelm prepare corpus`, or its shards separated by colons")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names of rows (default: all that differ)")
    parser.add_argument(
        "--seeds", type=number(int, 1), metavar="N", help="first N seeds of the plan (default: all of them)"
    )
    parser.add_argument(
        "--tasks", nargs="*", default=[], metavar="NAME=FOLDER",
        help="tasks: NAME=FOLDER for a folder of a kind that the plan declares, or NAME of a declared task (default: "
        "all declared tasks)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="*", type=_named, default=[], metavar="NAME=METRIC",
        help="metrics of tasks (default: the first metric that the plan lists for the kind of task)",
    )  # fmt: skip
    parser.add_argument(
        "--set", nargs="+", type=_named, default=[], metavar="NAME=VALUE",
        help="changes to the plan: a top-level setting, a setting in a table (fine-tuning.lr=1e-4), or an option of "
        "fairseq-train for all rows (lr=1e-3)",
    )  # fmt: skip
    add_precision(parser)
    add_runner_arguments(parser)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line and complete it; a mistake ends the program before anything is written."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    args.output = args.output.resolve()
    args.data = ":".join(str(Path(folder).resolve()) for folder in args.data.split(":"))
    try:
        for folder in args.data.split(":"):
            if not (Path(folder) / "dict.txt").exists():
                raise ValueError(f"there is no dict.txt in {folder}: DATA must be the folder of `maelm prepare corpus`")
        args.plan = Plan(args.plan, dict(args.set))
        args.rows = _rows(args)
        args.runner = runner_of(args, args.plan.content.get("most-gpus", _MOST_GPUS))
        args.machine = machine_of(args.runner.gpus, args.precision or args.plan.content.get("precision"))
        known = {"corpus": Path(args.data), "output": args.output, **study.machine_places(args.machine)}
        rows = {name: args.plan.rows[name] for name in args.rows}
        functions = [args.plan.report, study]
        args.steps = Steps(args.plan.content, rows, _tasks(args), known, functions, args.seeds)
        args.jobs = args.steps.jobs()
        for job in args.jobs if "common" in args.plan.content else ():
            job.process("")
    except (KeyError, OSError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    return args


def _rows(args: argparse.Namespace) -> list[str]:
    plan: Plan = args.plan
    if unknown := set(args.rows or ()) - set(plan.rows):
        raise ValueError(f"there is no row {sorted(unknown)[0]}, only {', '.join(plan.rows)}")
    same = study.same_rows(plan.content) if "common" in plan.content else {}
    return [
        name
        for name, row in plan.rows.items()
        if (name in args.rows if args.rows else name not in same and not row.get("optional"))
    ]


def _tasks(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return name -> what the plan declares; by default of all tasks that it declares."""
    declared = args.plan.content.get("tasks", {})
    pairs = [(text, None) if text in declared else _named(text) for text in args.tasks or declared]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("two --tasks have the same name")
    tasks = {name: args.plan.task(name, folder and Path(folder).resolve()) for name, folder in pairs}
    for name, metric in args.metrics:
        if name not in tasks:
            raise ValueError(f"--metrics {name}=...: there is no task of this name")
        suitable = tasks[name].get("metrics", "").split()
        if metric not in suitable:
            raise ValueError(f"the metric {metric} does not suit --tasks {name}: choose from {', '.join(suitable)}")
        tasks[name] = {**tasks[name], "metric": metric}
    return tasks


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the results, to compare with an earlier command's, and what the tables need."""
    folders = [Path(folder) for folder in args.data.split(":")]
    with open(folders[0] / "dict.txt", encoding="utf-8") as file:
        vocabulary = sum(1 for _ in file) + 5
    return {
        "data": args.data,
        "fingerprints": [data_fingerprint(folder) for folder in folders],
        "vocabulary": vocabulary,
        "gpus_of_a_process": args.runner.gpus,
        **args.steps.settings(),
        "precision": args.machine.precision,
    }


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not done yet, and write the tables even when interrupted.

    Raises:
        SystemExit: 1 if runs failed or something must be put right first, 130 when interrupted.
    """
    args = parse(arguments)
    with sitting("rows.py"):
        if args.runner.dry_run:
            args.runner.do(args.jobs)
            return
        with study_folder(args.output, settings_of(args)):
            try:
                args.runner.do(args.jobs)
            finally:
                sys.stdout.write(args.plan.report.write(args.output))


if __name__ == "__main__":
    main(sys.argv[1:])
