#!/usr/bin/env python3
"""Table 7 for a checkpoint: zero-shot, prompt-based and head-based few-shot learning, with the protocol of LM-BFF.

For every split the grid's best run on the development set is scored on the test set, which is GLUE's development set;
the table has the mean and the population standard deviation over the splits. What is done is not done again.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What programs of the examples share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from study import last_json, model_options  # isort: skip  (first, because it finds the package)
from few_shot_splits import EXAMPLES_PER_LABEL, SEEDS
from paper import TABLE_7

from fairseq_maelm.arguments import CommandParser, add_checkpoint, add_output, add_vocabulary, existing_path
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN
from fairseq_maelm.finetuning.training import FROM_CHECKPOINT, train_words
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.sweep.jobs import Job, Process, is_finished, read_json, visible
from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import study_folder
from fairseq_maelm.sweep.tables import markdown_table
from fairseq_maelm.train_command import Machine

WAYS = ("zero-shot", "head", "prompt")
# The one checkpoint of a finished run that is kept, as long as no other run of its split is better.
BEST = "checkpoint_best.pt"
# The optimization of Gao et al. (2021).
OPTIMIZATION = {
    "optimizer": "fused_adamw", "adam-betas": "(0.9, 0.999)", "adam-eps": "1e-8", "weight-decay": 0, "clip-norm": 1.0,
    "lr-scheduler": "polynomial_decay", "warmup-updates": 0, "dropout": 0.1, "attention-dropout": 0.1,
    "batch-size-valid": 32, "required-batch-size-multiple": 1, "maximize-best-checkpoint-metric": True,
    "validate-interval": 1_000_000, "save-interval": 1_000_000, "keep-interval-updates": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A point of the grid: way "prompt" or "head", task, split, batch size and learning rate."""

    way: str
    task: str
    seed: int
    batch_size: int
    learning_rate: str

    def folder(self, args: argparse.Namespace) -> Path:
        """Return the folder of the run's checkpoint, log and result."""
        return args.output / self.way / self.task / str(self.seed) / f"{self.batch_size}-{self.learning_rate}"

    def marker(self, args: argparse.Namespace) -> Path:
        """Return the file of its metric on the development set; its log is next to it."""
        return self.folder(args) / "train.json"

    def __str__(self) -> str:
        return f"{self.way} {self.task}, split {self.seed}, batch size {self.batch_size}, lr {self.learning_rate}"


def split_of(args: argparse.Namespace, task: str, seed: int) -> Path:
    """Return the folder of the tables of a split."""
    return args.splits / "tables" / task / f"{args.examples_per_label}-{seed}"


def test_tables(args: argparse.Namespace, task: str) -> list[Path]:
    """Return the test tables of a task: one, or for MNLI matched and mismatched."""
    names = ("test_matched", "test_mismatched") if task == "MNLI" else ("test",)
    return [args.splits / "tables" / task / f"{name}.tsv" for name in names]


def command(trial: Trial, args: argparse.Namespace, machine: Machine) -> list[str]:
    """Return the command of a run."""
    prompt, folder = BUILT_IN[trial.task], trial.folder(args)
    own: dict[str, Any] = {"task": "maelm_sentences", "criterion": "maelm_sentences", **FROM_CHECKPOINT}
    model: list[str] = []
    if trial.way == "prompt":
        model = model_options(args.checkpoint)
        positions = int(model[model.index("--max-positions") + 1])
        own = {"task": "maelm_prompt", "criterion": "maelm_prompt", "prompt": trial.task}
        own |= {"examples": split_of(args, trial.task, trial.seed), "several-pieces": args.several_pieces}
        own |= {"max-length": min(prompt.max_length, positions)}
    updates = dict.fromkeys(("total-num-update", "max-update"), args.updates)
    every = dict.fromkeys(("validate-interval-updates", "save-interval-updates", "log-interval"), args.validate_every)
    point = {"lr": trial.learning_rate, "batch-size": trial.batch_size, "seed": trial.seed}
    start = {"finetune-from-model": args.checkpoint, "best-checkpoint-metric": prompt.metrics[0]}
    options = {**own, **OPTIMIZATION, **updates, **every, **point, **start}
    data = args.vocabulary if trial.way == "prompt" else folder.parent / "sentences"
    return [*train_words(options, data, folder, machine), *model, *args.train_options]


def training_jobs(trials: Sequence[Trial], args: argparse.Namespace, machine: Machine) -> list[Job]:
    """Return the runs of one split; those with a head follow the preparation of their data."""

    def training(trial: Trial) -> Job:
        return Job(
            str(trial),
            trial.marker(args),
            lambda slot: Process(command(trial, args, machine), visible(slot)),
            lambda log: {"dev": _best_metric(trial.folder(args))},
            resumes=True,
            cost=args.updates,
            ended=lambda: _keep_the_best(trials, args),
        )

    jobs, first = [training(trial) for trial in trials], trials[0]
    if first.way == "prompt":
        return jobs
    folder, split = first.folder(args).parent / "sentences", split_of(args, first.task, first.seed)
    words = ["maelm", "prepare", "sentences", "--vocabulary", str(args.vocabulary), "--output", str(folder)]
    words += ["--train", str(split / "train.tsv"), "--valid", str(split / "valid.tsv")]
    words += ["--regression"] if BUILT_IN[first.task].bounds else []
    name = f"sentences of {first.task}, split {first.seed}"
    return [Job(name, folder.with_suffix(".json"), lambda slot: Process(words, {}), followers=jobs, clears=[folder])]


def _best_metric(folder: Path) -> float:
    """Return the best metric on the development set, in percent; of the checkpoints only its own stays."""
    for path in folder.glob("checkpoint_*.pt"):
        if path.name != BEST:
            path.unlink()
    return float(read_checkpoint(folder / BEST).history["val_loss"])


def best_of(trials: Sequence[Trial], args: argparse.Namespace) -> Trial:
    """Return the finished run of a split that is best on the development set, the first of equals."""
    finished = [trial for trial in trials if is_finished(trial.marker(args))]
    return max(finished, key=lambda trial: (read_json(trial.marker(args)) or {})["dev"])


def _keep_the_best(trials: Sequence[Trial], args: argparse.Namespace) -> None:
    finished = [trial for trial in trials if is_finished(trial.marker(args))]
    for trial in finished:
        if trial != best_of(finished, args):
            (trial.folder(args) / BEST).unlink(missing_ok=True)


def scoring_job(way: str, task: str, table: Path, best: Trial | None, args: argparse.Namespace) -> Job:
    """Return the job that scores a split's best run, or the pretrained checkpoint, on a test table."""
    folder = args.output / "zero-shot" / task if best is None else best.folder(args)
    checkpoint = args.checkpoint if best is None else folder / BEST
    words = ["maelm", "predict", str(table), "--checkpoint", str(checkpoint)]
    if best is None:
        words += ["--vocabulary", str(args.vocabulary), "--prompt", task]
        words += ["--several-pieces"] if args.several_pieces else []

    def process(slot: str) -> Process:
        if not checkpoint.exists():
            raise ValueError(
                f"{checkpoint} is gone, because another run of a larger grid was better: give that grid, or remove "
                f"{folder} to train this run again"
            )
        return Process(words, visible(slot))

    name = f"{way} {task}{f', split {best.seed}' if best else ''}, {table.stem}"
    return Job(name, folder / f"{table.stem}.json", process, last_json)


def measure(args: argparse.Namespace, runner: Runner) -> dict[str, dict[str, str]]:
    """Train and score everything that is not done yet; return way -> task -> a cell of the table, none in a dry run."""
    machine = Machine(runner.gpus, "fp32")
    points = list(itertools.product(args.batch_sizes, args.learning_rates))
    splits = {
        (way, task): [[Trial(way, task, seed, *point) for point in points] for seed in args.seeds]
        for way, task in itertools.product(args.ways, args.tasks)
        if way != "zero-shot"
    }
    runner.do([job for group in splits.values() for split in group for job in training_jobs(split, args, machine)])
    if runner.dry_run:
        sys.stdout.write("# then the best run of each split is scored\n")
        return {}
    scorings: dict[tuple[str, str], list[list[Job]]] = {}
    for way, task in itertools.product(args.ways, args.tasks):
        chosen = [best_of(split, args) for split in splits[way, task]] if way != "zero-shot" else [None]
        tables = test_tables(args, task)
        scorings[way, task] = [[scoring_job(way, task, table, best, args) for best in chosen] for table in tables]
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
    """Return the table in Markdown, with the paper's numbers."""
    names = [f"{task} ({BUILT_IN[task].metrics[0]})" for task in tasks]
    rows = [
        [way, model, *(row[task] for task in tasks)]
        for way, measured in cells.items()
        for model, row in {**TABLE_7[way], "this checkpoint": measured}.items()
    ]
    return markdown_table(["", "", *names], rows) + "\n"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = CommandParser(prog="few_shot.py", description=(__doc__ or "").split("\n\n")[0])
    add_checkpoint(parser, "pretrained checkpoint")
    add_vocabulary(parser)
    parser.add_argument("--splits", type=existing_path, required=True, help="folder of few_shot_splits.py")
    add_output(parser, "folder for the runs and the table")
    parser.add_argument("--tasks", nargs="+", choices=BUILT_IN, default=list(BUILT_IN), help="GLUE tasks")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="blocks of the table")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds of the splits")
    parser.add_argument("--examples-per-label", type=int, default=EXAMPLES_PER_LABEL, help="size of the splits")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[2, 4, 8], help="batch sizes to search")
    parser.add_argument("--learning-rates", nargs="+", default=["1e-5", "2e-5", "5e-5"], help="rates to search")
    parser.add_argument("--updates", type=int, default=1000, help="number of updates of a run")
    parser.add_argument("--validate-every", type=int, default=100, help="number of updates between validations")
    parser.add_argument("--several-pieces", action="store_true", help="allow label words of several pieces")
    add_runner_arguments(parser)
    parser.add_argument(
        "--train-options", nargs=argparse.REMAINDER, default=[], help="options of fairseq-train; the last"
    )
    args = parser.parse_args(arguments)
    args.checkpoint, args.splits, args.output = (each.resolve() for each in (args.checkpoint, args.splits, args.output))
    args.vocabulary = (args.vocabulary or args.checkpoint.parent).resolve()
    for task, seed in itertools.product(args.tasks, args.seeds):
        if not split_of(args, task, seed).exists():
            parser.error(f"there is no split {split_of(args, task, seed)}: see few_shot_splits.py")
    return args


def main() -> None:
    """Run what is missing, and write the table."""
    args = parse()
    with sitting("few_shot.py"):
        runner = runner_of(args)
        if runner.dry_run:
            measure(args, runner)
            return
        settings = {name: str(getattr(args, name)) for name in ("checkpoint", "updates", "validate_every")}
        with study_folder(args.output, {**settings, "options": str(tuple(args.train_options))}):
            table = table_of(measure(args, runner), args.tasks)
            (args.output / "table.md").write_text(table)
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
