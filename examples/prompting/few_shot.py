#!/usr/bin/env python3
"""Table 7 for a checkpoint: zero-shot, prompt-based and head-based few-shot learning, with the protocol of LM-BFF.

For every split the grid's best run on the development set is scored on the test set, which is GLUE's development set;
the table has the mean and the population standard deviation over the splits. What is done is not done again.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

# The scripts beside this one, wherever it is called from.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from paper import TABLE_7
from trials import BEST, ROOT, Study, Trial, run_trial, write_result

from fairseq_maelm.prompting.few_shot import EXAMPLES_PER_LABEL, SEEDS
from fairseq_maelm.prompting.prompts import BUILT_IN

WAYS = ("zero-shot", "head", "prompt")


def test_tables(study: Study, task: str) -> list[Path]:
    """Return the test tables of a task: one, or for MNLI matched and mismatched."""
    names = ("test_matched", "test_mismatched") if task == "MNLI" else ("test",)
    return [study.splits / "tables" / task / f"{name}.tsv" for name in names]


def score(words: list[str], result: Path) -> dict[str, float]:
    """Return the figures of a command that writes them as JSON, from the file that keeps them if there is one."""
    if not result.exists():
        result.parent.mkdir(parents=True, exist_ok=True)
        output = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
        write_result(result, json.loads(output.splitlines()[-1]))
    figures: dict[str, float] = json.loads(result.read_text())
    return figures


def prompt_words(study: Study, checkpoint: Path, table: Path, task: str | None) -> list[str]:
    """Return the command `maelm prompt` for a table."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from fairseq_maelm.cli import main; main()"
    words = ["-c", start, "prompt", str(checkpoint), str(study.data), "--examples", str(table)]
    words += ["--prompt", task] if task else []
    return words + (["--several-pieces"] if study.several_pieces else [])


def zero_shot(study: Study, task: str) -> list[list[float]]:
    """Return the figure of each test table, as a list of one."""
    metric = BUILT_IN[task].metrics[0]
    return [
        [
            score(
                prompt_words(study, study.checkpoint, table, task),
                study.output / "zero-shot" / task / f"{table.stem}.json",
            )[metric]
        ]
        for table in test_tables(study, task)
    ]


def few_shot(study: Study, way: str, task: str, grid: dict[int, list[Trial]]) -> list[list[float]]:
    """Return for each test table the figures of all splits, each by the run that is best on the development set."""
    metric = BUILT_IN[task].metrics[0]
    figures: list[list[float]] = [[] for _ in test_tables(study, task)]
    for trials in grid.values():
        best, best_dev = trials[0], float("-inf")
        for trial in tqdm(trials, desc=f"{way} {task} {trials[0].seed}"):
            dev = run_trial(trial, study)
            worse = trial
            if dev > best_dev:
                best, best_dev, worse = trial, dev, best
            if worse is not best:
                (worse.folder(study) / BEST).unlink(missing_ok=True)
        folder = best.folder(study)
        for place, table in enumerate(test_tables(study, task)):
            if way == "prompt":
                words = prompt_words(study, folder / BEST, table, None)
            else:
                script = str(Path(__file__).with_name("score_head.py"))
                words = [script, str(folder / BEST), str(folder.parent / "sentences"), str(table)]
                words += ["--task", task]
            figures[place].append(score(words, folder / f"{table.stem}.json")[metric])
    return figures


def cell(figures: list[list[float]]) -> str:
    """Return a cell of the table: mean and population standard deviation of each test table."""
    several = len(figures[0]) > 1
    return " / ".join(
        f"{statistics.fmean(values):.1f}" + (f" ({statistics.pstdev(values):.1f})" if several else "")
        for values in figures
    )


def table_of(cells: dict[str, dict[str, str]], tasks: list[str]) -> str:
    """Return the table in Markdown, the paper's numbers beside the measured ones."""
    names = [f"{task} ({BUILT_IN[task].metrics[0]})" for task in tasks]
    lines = ["| | | " + " | ".join(names) + " |", "|---" * (2 + len(tasks)) + "|"]
    for way, measured in cells.items():
        for model, row in {**TABLE_7[way], "this checkpoint": measured}.items():
            lines.append(f"| {way} | {model} | " + " | ".join(row[task] for task in tasks) + " |")
    return "\n".join(lines) + "\n"


def study_of(args: argparse.Namespace) -> Study:
    """Check the arguments and return what all runs share."""
    for path in (args.checkpoint, args.data / "dict.txt", args.splits / "manifest.json"):
        if not path.exists():
            raise SystemExit(f"few_shot.py: there is no {path}")
    study = Study(
        args.checkpoint.resolve(),
        args.data.resolve(),
        args.splits.resolve(),
        args.output.resolve(),
        args.examples_per_label,
        args.updates,
        args.validate_every,
        args.several_pieces,
        tuple(args.train_options),
    )
    for task, seed in itertools.product(args.tasks, args.seeds):
        if not study.split(task, seed).exists():
            raise SystemExit(f"few_shot.py: there is no split {study.split(task, seed)}: see maelm prepare-few-shot")
    settings = {name: str(getattr(study, name)) for name in ("checkpoint", "updates", "validate_every", "options")}
    record = study.output / "settings.json"
    study.output.mkdir(parents=True, exist_ok=True)
    if record.exists() and json.loads(record.read_text()) != settings:
        raise SystemExit(f"few_shot.py: the runs in {study.output} have other settings, see settings.json there")
    write_result(record, settings)
    return study


def main() -> None:
    """Read the command line, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("--data", type=Path, required=True, help="folder with its vocabulary")
    parser.add_argument("--splits", type=Path, required=True, help="folder of maelm prepare-few-shot")
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
    parser.add_argument("--train-options", nargs=argparse.REMAINDER, default=[], help="of fairseq-train; the last")
    args = parser.parse_args()
    study = study_of(args)
    cells: dict[str, dict[str, str]] = {way: {} for way in args.ways}
    for way, task in itertools.product(args.ways, args.tasks):
        points = list(itertools.product(args.batch_sizes, args.learning_rates))
        grid = {seed: [Trial(way, task, seed, size, rate) for size, rate in points] for seed in args.seeds}
        figures = zero_shot(study, task) if way == "zero-shot" else few_shot(study, way, task, grid)
        cells[way][task] = cell(figures)
    table = table_of(cells, args.tasks)
    (study.output / "table.md").write_text(table)
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
