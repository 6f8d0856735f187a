#!/usr/bin/env python3
"""Pretrain rows of the paper's Table 2 and Figure 4 on equal data, fine-tune each, and write their table.

The same command continues after an interruption. Rows, tasks and seeds can be added to a study later.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study  # first, because it finds the package
from table_2 import write
from variants import ROWS, row_options, same_rows

from fairseq_maelm.architecture.encoder_options import SIZES
from fairseq_maelm.launch.command_line import number_if_it_is_one, words_of
from fairseq_maelm.launch.machine import add_precision, machine_of
from fairseq_maelm.launch.recipes import check_name
from fairseq_maelm.options import CommandParser, UsageError, named, number, refuse_repeated
from fairseq_maelm.sweep.folder import data_fingerprint, sweep_folder
from fairseq_maelm.sweep.log import best_validation
from fairseq_maelm.sweep.programs import Program, add_runner_arguments, is_finished, runner_of, sitting

# The paper's for its base model.
ARCH, UPDATES, SEEDS = "maelm_base", 125_000, 5
PRETRAINING: dict[str, Any] = {
    "sample-break-mode": "complete_doc", "tokens-per-sample": 512, "max-positions": 512, "max-tokens": 16_384,
    "update-freq": 64, "lr": 5e-4, "warm-up": 0.08, "clip-norm": 2.0, "mask-prob": 0.15, "leave-unmasked-prob": 0.0,
    "random-token-prob": 0.0,
}  # fmt: skip
# Each validation of a pretraining also saves it.
VALIDATIONS = 10
# The options of `maelm finetune` for all rows and tasks.
FINE_TUNING: dict[str, Any] = {"lr": 3e-5, "epochs": 3, "batch-size": 32, "warm-up": 0.06}
# File in a task's folder -> suitable metrics; the first one counts unless --metrics names another.
METRICS = {
    "train.npz": ("exact", "answer_f1"),
    "label/dict.txt": ("accuracy", "mcc", "f1"),
    "input0/train.idx": ("spearman", "pearson"),
}
# Options of fairseq-train that this program has itself.
OWN_OPTIONS = {"arch": "--arch", "max-update": "--updates"}
# Of a pretraining, all in one machine.
MOST_GPUS = 16


class Task(NamedTuple):
    """A task to fine-tune on: its folder, and the metric whose best validation is a run's score."""

    folder: Path
    metric: str


def pretraining_program(args: argparse.Namespace, row: str) -> Program:
    """Return the pretraining of a row; an update has the same batch on any number of GPUs."""
    folder, options = args.output / "runs" / row, row_options(row, args.options)
    options["update-freq"] //= max(1, args.machine.gpus)
    interval = max(1, round(args.updates / VALIDATIONS))
    words = study.pretraining(args.data, folder / "checkpoints", options, args.updates, interval, args.machine)
    return Program(f"{row}, pretraining", folder / "pretraining.json", words, study.last_loss, resumes=True)


def fine_tuning_program(args: argparse.Namespace, row: str, task: str, seed: int) -> Program:
    """Return a fine-tuning of a pretrained row, on one GPU if there are any; its score is in percent."""
    folder, (data, metric) = args.output / "runs" / row, args.tasks[task]
    own = {name: value for name, value in args.fine_tuning.items() if name in FINE_TUNING}
    more = {name: value for name, value in args.fine_tuning.items() if name not in FINE_TUNING}
    words = [
        *("maelm", "finetune", data, "--checkpoint", folder / "checkpoints" / "checkpoint_last.pt"),
        *("--output", folder / task, *words_of(own), "--seed", seed, "--gpus", min(1, args.machine.gpus)),
        *("--precision", args.machine.precision, "--verbose", "--", "--no-save", *words_of(more)),
    ]
    logged = logged_metric(data, metric)
    return Program(
        f"{row}, {task}, seed {seed}",
        folder / task / f"seed_{seed}.json",
        [str(word) for word in words],
        lambda log: best_validation(log, logged, [logged], ["valid"]),
    )


def logged_metric(data: Path, metric: str) -> str:
    """Return a metric's name in logs; in SQuAD 2.0, with the threshold that is best on the validation set."""
    metric = metric.removeprefix("answer_")
    questions = data / "valid.json"
    if questions.exists() and json.loads(questions.read_bytes())["version"] == "2.0":
        return f"best_{metric}"
    return metric


def work(args: argparse.Namespace) -> None:
    """Pretrain all rows, then fine-tune those that are pretrained; raise a ValueError at the end if a run failed."""
    pretraining = {row: pretraining_program(args, row) for row in args.rows}
    # Each GPU of a pretraining is one for a fine-tuning.
    runner = args.runner._replace(slots=[gpu for slot in args.runner.slots for gpu in slot.split(",")])
    failed = args.runner.run([*pretraining.values()])
    ready = [run for run in args.fine_tunings if runner.dry_run or is_finished(pretraining[run[0]].marker)]
    failed |= runner.run([fine_tuning_program(args, *run) for run in ready])
    runner.refuse(failed)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    pairs: dict[str, Any] = {"nargs": "+", "action": "extend", "type": named, "default": []}
    parser.add_argument("data", help="folder of `maelm prepare corpus`, or its shards separated by colons")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, metavar="ROW", help="rows of the table (default: all that differ)"
    )
    parser.add_argument("--arch", choices=SIZES, default=ARCH, metavar="NAME", help="size of the model")
    parser.add_argument(
        "--updates", type=number(int, 1), default=UPDATES, metavar="N", help="updates of each pretraining"
    )
    parser.add_argument(
        "--option", **pairs, metavar="NAME=VALUE", help="options of fairseq-train for all pretrainings, such as lr=1e-3"
    )
    parser.add_argument(
        "--tasks", **pairs, metavar="NAME=FOLDER", help="folders of `maelm prepare sentences`, `glue` or `squad`"
    )
    parser.add_argument("--seeds", type=number(int, 1), default=SEEDS, metavar="N", help="fine-tunings on each task")
    parser.add_argument(
        "--metrics", **pairs, metavar="NAME=METRIC",
        help="metrics of tasks (default: accuracy, spearman where labels are numbers, exact for answers)",
    )  # fmt: skip
    parser.add_argument(
        "--fine-tuning", **pairs, metavar="NAME=VALUE",
        help=f"settings of fine-tuning: {', '.join(FINE_TUNING)}, or any option of fairseq-train",
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
    given = {name: number_if_it_is_one(value) for name, value in args.option}
    args.options = {"arch": args.arch, **PRETRAINING, **given}
    args.fine_tuning = {**FINE_TUNING, **{name: number_if_it_is_one(value) for name, value in args.fine_tuning}}
    try:
        args.tasks = read_tasks(args.tasks, args.metrics)
        args.runner = runner_of(args, MOST_GPUS)
        args.machine = machine_of(args.runner.gpus, args.precision)
        check(args, given)
        same = same_rows(args.options)
    except (OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    args.rows = [name for name in ROWS if (name in args.rows if args.rows else name not in same)]
    seeds = range(1, args.seeds + 1)
    args.fine_tunings = [(row, task, seed) for row in args.rows for task in args.tasks for seed in seeds]
    return args


def check(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raise a UsageError for missing data, or options that the command sets by itself."""
    for folder in args.data.split(":"):
        if not (Path(folder) / "dict.txt").exists():
            raise UsageError(f"there is no dict.txt in {folder}: DATA must be the folder of `maelm prepare corpus`")
    for name in OWN_OPTIONS.keys() & given.keys():
        raise UsageError(f"--option {name}: give {OWN_OPTIONS[name]} instead")
    passes, gpus = args.options["update-freq"], max(1, args.machine.gpus)
    if not isinstance(passes, int) or passes % gpus:
        raise UsageError(f"--option update-freq: {passes} must be a multiple of the {gpus} GPUs of a pretraining")


def read_tasks(folders: Sequence[tuple[str, str]], metrics: Sequence[tuple[str, str]]) -> dict[str, Task]:
    """Return name -> task; raise a UsageError if a folder is not one of a task, or a metric does not suit it."""
    refuse_repeated([name for name, _ in folders], "task")
    wanted, tasks = dict(metrics), {}
    for name in wanted.keys() - dict(folders).keys():
        raise UsageError(f"--metrics {name}: there is no task of this name")
    for name, folder in folders:
        check_name(name, "the name of a task")
        path = Path(folder).resolve()
        suitable = next((own for file, own in METRICS.items() if (path / file).exists()), ())
        if not suitable:
            raise UsageError(f"there is no {' or '.join(METRICS)} for --tasks {name}={folder}: prepare the task first")
        metric = wanted.get(name, suitable[0])
        if metric not in suitable:
            raise UsageError(f"the metric {metric} does not suit --tasks {name}: choose from {', '.join(suitable)}")
        tasks[name] = Task(path, metric)
    return tasks


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the results, to compare with an earlier command's, and what the tables need."""
    tasks = {name: {"data": data_fingerprint(each.folder), "metric": each.metric} for name, each in args.tasks.items()}
    runs: dict[str, Any] = {f"runs/{row}/pretraining": {"model": row} for row in args.rows}
    for row, task, seed in args.fine_tunings:
        runs[f"runs/{row}/{task}/seed_{seed}"] = {"model": row, "task": task, "seed": seed}
    return {
        "data": [data_fingerprint(Path(folder)) for folder in args.data.split(":")], "options": args.options,
        "updates": args.updates, "fine-tuning": args.fine_tuning, "gpus": args.runner.gpus,
        "precision": args.machine.precision, "models": {name: row_options(name, args.options) for name in args.rows},
        "tasks": tasks, "runs": runs,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not done yet, and write the tables even when interrupted.

    Exit with 1 if runs failed or something must be put right first, with 130 when interrupted.
    """
    args = parse(arguments)
    with sitting("ablations.py"):
        if args.runner.dry_run:
            work(args)
            return
        with sweep_folder(args.output, settings_of(args)):
            try:
                work(args)
            finally:
                sys.stdout.write(write(args.output))


if __name__ == "__main__":
    main(sys.argv[1:])
