#!/usr/bin/env python3
"""Do what a plan declares for rows, tasks and seeds, such as pretrainings with other options, and write its tables.

The same command goes on after an interruption. Rows, tasks and seeds can be added to a study later.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import study  # first, because it finds the package
from rows_plan import Plan, Run
from steps import Steps, machine_places
from study import METRICS, is_squad, last_loss, logged_name, metrics_of

from fairseq_maelm.arguments import CommandParser, number
from fairseq_maelm.studies.engine import Job, Process, visible
from fairseq_maelm.studies.folder import data_fingerprint, study_folder
from fairseq_maelm.studies.log import best_validation
from fairseq_maelm.studies.options import add_runner_arguments, runner_of, sitting
from fairseq_maelm.train_command import add_precision, machine_of

# Of one machine, for pretraining.
_MOST_GPUS = 16
_FINE_TUNING = ("lr", "epochs", "batch-size", "warm-up")


# The command line


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.translate(str.maketrans("", "", "-_.")).isalnum() and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("plan", type=Path, help="declaration of the rows, such as examples/ablations/plan.yaml")
    parser.add_argument("data", help="folder of `maelm prepare corpus`; several shards with a colon between them")
    parser.add_argument("output", type=Path, help="folder of the study")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names of rows (default: all that differ)")
    parser.add_argument(
        "--seeds", type=number(int, 1), metavar="N", help="the first seeds of a row alone (default: the plan's)"
    )
    parser.add_argument(
        "--tasks", nargs="*", default=[], metavar="NAME=FOLDER",
        help="of fine-tuning: folders of `maelm prepare sentences` or `maelm prepare squad`; or what the plan takes, "
        "and names alone of tasks that it declares (default: all of those)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics", nargs="*", type=_named, default=[], metavar="NAME=METRIC",
        help=f"{', '.join(METRICS)}; otherwise accuracy, spearman where labels are numbers, exact of answers",
    )  # fmt: skip
    parser.add_argument(
        "--set", nargs="+", type=_named, default=[], metavar="NAME=VALUE",
        help="changes of the plan: a value at its top, one in a table (fine-tuning.seeds=3), or an option of "
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
        args.plan = Plan(args.plan, dict(args.set))
        steps = "steps" in args.plan.content
        args.tasks = _tasks(args)
        args.metrics = dict(args.metrics)
        args.runner = runner_of(args, 1 if steps else _MOST_GPUS)
        args.machine = machine_of(args.runner.gpus, args.precision or args.plan.content.get("precision"))
        mistake = _mistake(args) or ("" if steps else _mistake_in_pretraining(args))
        if not mistake:
            twins = args.plan.same_rows()
            args.rows = [name for name in args.plan.rows if (name in args.rows if args.rows else name not in twins)]
            args.steps = _steps(args) if steps else None
            args.runs = [] if steps else list(args.plan.runs(args.rows, args.seeds))
    except (KeyError, OSError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        mistake = str(error)
    if mistake:
        parser.error(mistake)
    return args


def _tasks(args: argparse.Namespace) -> dict[str, Path | None]:
    """Return name -> folder, None for tasks that the plan declares; by default those."""
    declared = args.plan.content.get("tasks", {})
    pairs = [(text, None) if text in declared else _named(text) for text in args.tasks or declared]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("two --tasks have the same name")
    return {name: folder and Path(folder).resolve() for name, folder in pairs}


def _steps(args: argparse.Namespace) -> Steps:
    seeds = " ".join(args.plan.content["seeds"].split()[: args.seeds])
    known = {"corpus": Path(args.data), "output": args.output, "seeds": seeds, **machine_places(args.machine)}
    return Steps(args.plan, args.rows, args.tasks, known)


def _mistake(args: argparse.Namespace) -> str:
    unknown = set(args.rows or ()) - set(args.plan.rows)
    if unknown:
        return f"there is no row {sorted(unknown)[0]}, only {', '.join(args.plan.rows)}"
    for folder in args.data.split(":"):
        if not (Path(folder) / "dict.txt").exists():
            return f"there is no dict.txt in {folder}: DATA must be the folder of `maelm prepare corpus`"
    if set(args.metrics) - set(args.tasks):
        return f"--metrics names no task: {', '.join(sorted(set(args.metrics) - set(args.tasks)))}"
    return ""


def _mistake_in_pretraining(args: argparse.Namespace) -> str:
    args.tasks = {name: str(folder) for name, folder in args.tasks.items()}
    args.metrics = {name: metrics_of(Path(folder))[0] for name, folder in args.tasks.items()} | args.metrics
    for name, folder in args.tasks.items():
        if not (is_squad(Path(folder)) or (Path(folder) / "input0" / "train.idx").exists()):
            return (
                f"{folder} (--tasks {name}) has no input0/train.idx and no train.npz: make it with `maelm prepare "
                "sentences` or `maelm prepare squad`"
            )
        if args.metrics[name] not in metrics_of(Path(folder)):
            suitable = ", ".join(metrics_of(Path(folder)))
            return f"the metric {args.metrics[name]} does not suit --tasks {name}: choose one of {suitable}"
    passes, gpus = args.plan.content["common"].get("update-freq", 1), max(1, args.runner.gpus)
    if passes % gpus:
        return f"update-freq {passes} must be a multiple of the {gpus} GPUs of a process"
    return ""


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return what decides the results, to compare with an earlier command's, and what the tables need."""
    plan, folders = args.plan.content, args.data.split(":")
    text = {"data": args.data, "fingerprints": [data_fingerprint(Path(folder)) for folder in folders]}
    if args.steps:
        return {
            **text,
            "gpus_of_a_process": args.runner.gpus,
            **args.steps.settings(),
            "precision": args.machine.precision,
        }
    with open(Path(folders[0]) / "dict.txt", encoding="utf-8") as file:
        vocabulary = sum(1 for _ in file) + 5
    tasks = {
        name: {"folder": folder, "fingerprint": data_fingerprint(Path(folder)), "metric": args.metrics[name]}
        for name, folder in args.tasks.items()
    }
    fine_tuning = dict(plan.get("fine-tuning", {}))
    return {
        **text,
        "vocabulary": vocabulary,
        "gpus_of_a_process": args.runner.gpus,
        "precision": args.machine.precision,
        "plan": {name: value for name, value in plan.items() if name in ("updates", "tokens", "validations", "common")},
        "seeds": fine_tuning.pop("seeds", 1),
        "fine_tuning": fine_tuning,
        "rows": {run.name: run._asdict() for run in args.runs},
        "tasks": tasks,
    }


# Programs


def pretraining(args: argparse.Namespace, run: Run, save_dir: Path, is_first: bool = False) -> list[str]:
    """Return the command of a pretraining, or of the first part of one."""
    plan: Plan = args.plan
    options, share = dict(run.options), 1.0
    if run.first is not None:
        share = run.first["share"] if is_first else 1 - run.first["share"]
        options |= run.first["options"] if is_first else {}
    if "update-freq" in options:
        options["update-freq"] //= max(1, args.machine.gpus)
    interval = max(1, round(plan.updates(options) / plan.content["validations"]))
    own = study.run_options(
        options, plan.updates(options, share), interval, args.machine, run.seed, decays=not is_first
    )
    return study.pretraining(args.data, save_dir, own)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Return the pretraining of each run, after its first part if it has one, followed by its fine-tunings."""
    jobs = []
    for run in args.runs:
        save_dir = args.output / "runs" / run.name / "checkpoints"
        words = pretraining(args, run, save_dir)
        if run.first:
            before = args.output / "runs" / f"{run.name}.first" / "checkpoints"
            words += ["--finetune-from-model", str(before / "checkpoint_last.pt")]
        job = _pretraining_job(run.name, words, save_dir)
        job.followers = list(_fine_tunings(args, run, save_dir / "checkpoint_last.pt"))
        if run.first:
            first = _pretraining_job(f"{run.name}.first", pretraining(args, run, before, is_first=True), before)
            first.followers, job = [job], first
        jobs.append(job)
    return jobs


def _pretraining_job(name: str, words: list[str], save_dir: Path) -> Job:
    marker = save_dir.with_name("pretraining.json")
    return Job(f"{name} pretraining", marker, Process(words, {}).on, last_loss, resumes=True)


def _fine_tunings(args: argparse.Namespace, run: Run, checkpoint: Path) -> Iterator[Job]:
    """Yield the fine-tunings of an encoder, by the recipe for its kind of task, on one GPU at most."""
    settings = args.plan.content.get("fine-tuning", {})
    for task, folder in args.tasks.items():
        logged = logged_name(args.metrics[task], Path(folder))
        for seed in range(1, settings.get("seeds", 1) + 1):
            marker = args.output / "runs" / run.name / task / f"seed_{seed}.json"
            own = {name: settings[name] for name in _FINE_TUNING if name in settings}
            own |= {"seed": seed, "gpus": min(1, args.machine.gpus), "precision": args.machine.precision}
            more = ["--no-save", *shlex.split(settings.get("options", ""))]
            words = study.fine_tuning(folder, checkpoint, marker.parent, own, more)
            result = partial(best_validation, metric=logged, metrics=[logged], subsets=["valid"])
            yield Job(f"{run.name} {task} seed {seed}", marker, partial(_on_one_gpu, words), result)


def _on_one_gpu(words: list[str], slot: str) -> Process:
    return Process(words, visible(slot.split(",")[0]))


def main(arguments: Sequence[str]) -> None:
    """Do everything that is not done yet, and write the tables even when interrupted.

    Raises:
        SystemExit: 1 if runs failed or something must be put right first, 130 when interrupted.
    """
    args = parse(arguments)
    with sitting("rows.py"):
        groups = args.steps.groups() if args.steps else iter([jobs_of(args)])
        if args.runner.dry_run:
            for jobs in groups:
                args.runner.do(jobs)
            return
        with study_folder(args.output, settings_of(args)):
            try:
                for jobs in groups:
                    args.runner.do(jobs)
            finally:
                sys.stdout.write(args.plan.report.write(args.output))


if __name__ == "__main__":
    main(sys.argv[1:])
