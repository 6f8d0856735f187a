#!/usr/bin/env python3
"""Table 7 for a checkpoint: zero-shot, prompt-based and head-based few-shot learning, with the protocol of LM-BFF.

For every split the grid's best run on the development set is scored on the test set, which is GLUE's development set;
the table has the mean and the population standard deviation over the splits. What is done is not done again.
"""

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path

from few_shot_splits import EXAMPLES_PER_LABEL, SEEDS
from paper import TABLE_7
from trials import BEST, Setup, Trial, best_of, training_jobs

from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN
from fairseq_maelm.sweep.jobs import Job, Process, read_json, visible
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import study_folder
from fairseq_maelm.sweep.tables import markdown_table

WAYS = ("zero-shot", "head", "prompt")


def test_tables(setup: Setup, task: str) -> list[Path]:
    """Return the test tables of a task: one, or for MNLI matched and mismatched."""
    names = ("test_matched", "test_mismatched") if task == "MNLI" else ("test",)
    return [setup.splits / "tables" / task / f"{name}.tsv" for name in names]


def scoring_job(way: str, task: str, table: Path, best: Trial | None, setup: Setup) -> Job:
    """The metrics of a checkpoint on a test table: of a split's best run, or of pretraining where there is none."""
    folder = setup.output / "zero-shot" / task if best is None else best.folder(setup)
    checkpoint = setup.checkpoint if best is None else folder / BEST
    if way == "head":
        words = ["python", str(Path(__file__).with_name("score_head.py")), str(checkpoint)]
        words += [str(folder.parent / "sentences"), str(table), "--task", task]
    else:
        words = ["maelm", "prompt", str(checkpoint), str(setup.data), "--examples", str(table)]
        # A checkpoint that was fine-tuned with a prompt holds it.
        words += ["--prompt", task] if best is None else []
        words += ["--several-pieces"] if setup.several_pieces else []

    def process(slot: str) -> Process:
        if not checkpoint.exists():
            raise ValueError(
                f"{checkpoint} is gone, because another run of a larger grid was better: give that grid, or remove "
                f"{folder} to train this run again"
            )
        return Process(words, visible(slot))

    name = f"{way} {task}{f', split {best.seed}' if best else ''}, {table.stem}"
    return Job(name, folder / f"{table.stem}.json", process, written_metrics)


def written_metrics(log: Path) -> dict[str, float]:
    """The last line of JSON in a log.

    Raises:
        ValueError: there is none.
    """
    for line in reversed(log.read_text(encoding="utf-8").splitlines()):
        if line.startswith("{"):
            metrics: dict[str, float] = json.loads(line)
            return metrics
    raise ValueError("it has written no metrics")


def measure(args: argparse.Namespace, setup: Setup, runner: Runner) -> dict[str, dict[str, str]]:
    """Train and score what is not done yet; returns way -> task -> a cell of the table, none in a dry run."""
    points = list(itertools.product(args.batch_sizes, args.learning_rates))
    splits = {
        (way, task): [[Trial(way, task, seed, *point) for point in points] for seed in args.seeds]
        for way, task in itertools.product(args.ways, args.tasks)
        if way != "zero-shot"
    }
    runner.do([job for group in splits.values() for split in group for job in training_jobs(split, setup)])
    if runner.dry_run:
        sys.stdout.write("# then the best run of each split is scored\n")
        return {}
    scorings: dict[tuple[str, str], list[list[Job]]] = {}
    for way, task in itertools.product(args.ways, args.tasks):
        chosen = [best_of(split, setup) for split in splits[way, task]] if way != "zero-shot" else [None]
        tables = test_tables(setup, task)
        scorings[way, task] = [[scoring_job(way, task, table, best, setup) for best in chosen] for table in tables]
    runner.do([job for tables in scorings.values() for jobs in tables for job in jobs])
    cells: dict[str, dict[str, str]] = {way: {} for way in args.ways}
    for (way, task), tables in scorings.items():
        metric = BUILT_IN[task].metrics[0]
        cells[way][task] = cell([[(read_json(job.marker) or {})[metric] for job in jobs] for jobs in tables])
    return cells


def cell(metrics: list[list[float]]) -> str:
    """Return a cell of the table: mean and population standard deviation of each test table."""
    several = len(metrics[0]) > 1
    return " / ".join(
        f"{statistics.fmean(values):.1f}" + (f" ({statistics.pstdev(values):.1f})" if several else "")
        for values in metrics
    )


def table_of(cells: dict[str, dict[str, str]], tasks: list[str]) -> str:
    """Return the table in Markdown, the paper's numbers beside the measured ones."""
    names = [f"{task} ({BUILT_IN[task].metrics[0]})" for task in tasks]
    rows = [
        [way, model, *(row[task] for task in tasks)]
        for way, measured in cells.items()
        for model, row in {**TABLE_7[way], "this checkpoint": measured}.items()
    ]
    return markdown_table(["", "", *names], rows) + "\n"


def setup_of(args: argparse.Namespace, gpu: bool) -> Setup:
    """Check the arguments and return what all runs share.

    Raises:
        ValueError: a file or a split is missing.
    """
    for path in (args.checkpoint, args.data / "dict.txt", args.splits / "manifest.json"):
        if not path.exists():
            raise ValueError(f"there is no {path}")
    setup = Setup(
        args.checkpoint.resolve(),
        args.data.resolve(),
        args.splits.resolve(),
        args.output.resolve(),
        args.examples_per_label,
        args.updates,
        args.validate_every,
        args.several_pieces,
        tuple(args.train_options),
        gpu,
    )
    for task, seed in itertools.product(args.tasks, args.seeds):
        if not setup.split(task, seed).exists():
            raise ValueError(f"there is no split {setup.split(task, seed)}: see few_shot_splits.py")
    return setup


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("--data", type=Path, required=True, help="folder with its vocabulary")
    parser.add_argument("--splits", type=Path, required=True, help="folder of few_shot_splits.py")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--tasks", nargs="+", choices=BUILT_IN, default=list(BUILT_IN))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--examples-per-label", type=int, default=EXAMPLES_PER_LABEL)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--learning-rates", nargs="+", default=["1e-5", "2e-5", "5e-5"])
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--validate-every", type=int, default=100)
    parser.add_argument("--several-pieces", action="store_true", help="allow label words of several pieces")
    add_runner_arguments(parser)
    parser.add_argument("--train-options", nargs=argparse.REMAINDER, default=[], help="of fairseq-train; the last")
    return parser


def main() -> None:
    """Read the command line, run what is missing, and write the table."""
    args = make_parser().parse_args()
    with sitting("few_shot.py"):
        runner = runner_of(args)
        setup = setup_of(args, runner.gpus > 0)
        if runner.dry_run:
            measure(args, setup, runner)
            return
        settings = {name: str(getattr(setup, name)) for name in ("checkpoint", "updates", "validate_every", "options")}
        with study_folder(setup.output, settings):
            table = table_of(measure(args, setup, runner), args.tasks)
            (setup.output / "table.md").write_text(table)
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
