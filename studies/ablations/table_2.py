#!/usr/bin/env python3
"""Write the tables of a study with the paper's numbers: Table 2 and Figure 4.

python studies/ablations/table_2.py OUTPUT writes the table of a study again.
"""

import csv
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

# The package is found next to the studies if it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from variants import ROWS

from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.sweep.folder import read_settings
from fairseq_maelm.sweep.programs import read_marker
from fairseq_maelm.sweep.tables import markdown_table

# Metrics of answers to questions, which are not in an average over tasks of sentences.
ANSWERS = ("exact", "answer_f1")


class Task(NamedTuple):
    """The scores of a row on a task."""

    scores: list[float]  # one for each seed that is finished, in percent
    failed: int  # how many seeds failed
    seeds: int  # how many there are to be
    answers: bool  # to questions, which are not in an average over tasks of sentences

    @property
    def median(self) -> float | None:
        """Over the finished seeds."""
        return median(self.scores) if self.scores else None

    def __str__(self) -> str:
        missing = self.seeds - len(self.scores) - self.failed
        notes = [f"{number} {what}" for number, what in ((self.failed, "failed"), (missing, "not run")) if number]
        return " ".join([_number(self.median), *([f"({', '.join(notes)})"] if notes else [])])


class Result(NamedTuple):
    """A row with what was measured: tasks by name, loss in bits and updates a second of the pretraining, its state."""

    name: str
    tasks: dict[str, Task]
    loss: float | None
    speed: float | None
    state: str  # "" if pretraining is finished, otherwise what is the matter

    @property
    def average(self) -> float | None:
        """Of the medians over the tasks of sentences, None unless every seed of every one has a score."""
        tasks = [task for task in self.tasks.values() if not task.answers]
        complete = tasks and all(len(task.scores) == task.seeds for task in tasks)
        return mean(median(task.scores) for task in tasks) if complete else None


def collect(folder: Path) -> list[Result]:
    """Read what a study's folder holds."""
    settings = read_settings(folder)
    seeds = dict.fromkeys(axes["seed"] for axes in settings["runs"].values() if "seed" in axes)
    found = []
    for name in (name for name in ROWS if name in settings["models"]):
        tasks = {}
        for task, own in settings["tasks"].items():
            paths = [folder / "runs" / name / task / f"seed_{seed}.json" for seed in seeds]
            markers = [marker for path in paths if (marker := read_marker(path)) is not None]
            scores = [float(marker["score"]) for marker in markers if "failed" not in marker]
            tasks[task] = Task(scores, len(markers) - len(scores), len(paths), own["metric"] in ANSWERS)
        pretraining = read_marker(folder / "runs" / name / "pretraining.json")
        state = "not finished" if pretraining is None else f"failed: {pretraining.get('failed', '')}"
        state = "" if pretraining is not None and "failed" not in pretraining else state
        own = pretraining or {}
        found.append(Result(name, tasks, own.get("loss"), own.get("updates_per_second"), state))
    return found


def difference(value: float | None, reference: float | None) -> str:
    """Return the difference of a value and a reference, or a dash if one is missing."""
    return _number(None if value is None or reference is None else value - reference, "+.1f")


def _number(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else format(value, form)


def main_table(results: Sequence[Result]) -> str:
    """Table 2, and the rows of Figure 4, in Markdown."""
    tasks = list(results[0].tasks) if results else []
    head = ["group", "setting", "row", "paper: GLUE", "paper: to MAE-LM"]
    head += [*tasks, "average", "to MAE-LM", "bits", "updates/s", ""]
    reference = next((result.average for result in results if result.name == "maelm"), None)
    lines = []
    for result in results:
        row = ROWS[result.name]
        lines.append(
            [
                *(row.group, row.setting, result.name, _number(row.paper), difference(row.paper, ROWS["maelm"].paper)),
                *(*map(str, result.tasks.values()), _number(result.average), difference(result.average, reference)),
                *(_number(result.loss, ".3f"), _number(result.speed, ".2f"), result.state),
            ]
        )
    return markdown_table(head, lines)


def transition(results: Sequence[Result]) -> list[Result]:
    """Return the series of Figure 4 from MAE-LM (delta = 0) to masked language modeling with a decoder (delta = 1).

    The end is taken from the row that computes the same where its own was not asked for.
    """
    by_name = {result.name: result for result in results}
    for name, row in ROWS.items():
        if row.same_as in by_name and name not in by_name:
            by_name[name] = by_name[row.same_as]._replace(name=name)
    # In the order of ROWS, which is that of delta.
    return [by_name[name] for name, row in ROWS.items() if name in by_name and row.delta is not None]


def transition_table(series: Sequence[Result]) -> str:
    """Return the series of Figure 4 in Markdown."""
    lines = []
    for result in series:
        measured = [*map(str, result.tasks.values()), _number(result.average), _number(result.loss, ".3f")]
        lines.append([f"{ROWS[result.name].delta:g}", _number(ROWS[result.name].paper), *measured])
    return markdown_table(["delta", "paper: GLUE", *series[0].tasks, "average", "bits"], lines)


def draw_transition(series: Sequence[Result], path: Path) -> None:
    """Draw Figure 4: the average over tasks of sentences, and the score of each task of questions, against delta."""
    curves = {"average": [result.average for result in series]}
    for name, task in series[0].tasks.items():
        if task.answers:
            curves[name] = [result.tasks[name].median for result in series]
    curves = {name: scores for name, scores in curves.items() if any(score is not None for score in scores)}
    if not curves:
        return
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(1, len(curves), figsize=(4.5 * len(curves), 3.6), squeeze=False)
    for axis, (name, scores) in zip(axes[0], curves.items()):
        points = [(ROWS[result.name].delta, score) for result, score in zip(series, scores) if score is not None]
        axis.plot(*zip(*points), "o-")
        axis.set(xlabel="delta: share of masks that the encoder sees", ylabel=name)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=160, bbox_inches="tight")
    pyplot.close(figure)


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write everything that was measured, an empty field where there is nothing."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        tasks = list(results[0].tasks) if results else []
        own = [f"{task}_{name}" for task in tasks for name in ("median", "lowest", "highest", "scores", "failed")]
        names = ["row", "group", "setting", "delta", "paper_glue", "average", "bits", "updates_per_second", "state"]
        writer.writerow([*names, *own])
        for result in results:
            row = ROWS[result.name]
            line = [result.name, row.group, row.setting, row.delta, row.paper, result.average]
            line += [result.loss, result.speed, result.state]
            for task in result.tasks.values():
                ends = [min(task.scores), max(task.scores)] if task.scores else [None, None]
                line += [task.median, *ends, " ".join(f"{score:g}" for score in task.scores), task.failed]
            writer.writerow(line)


def write(folder: Path) -> str:
    """Write table.md, table.csv and figure_4.csv, with matplotlib also figure_4.png; return the Markdown."""
    results = collect(folder)
    text, series = [main_table(results)], transition(results)
    if len(series) > 1:
        text += ["Figure 4: from MAE-LM (0) to masked language modeling with a decoder (1)", transition_table(series)]
        write_csv(folder / "figure_4.csv", series)
        if find_spec("matplotlib"):
            draw_transition(series, folder / "figure_4.png")
    text.append(
        "Scores are medians over seeds, in percent; the average is over tasks of sentences. Bits: loss on held-out "
        "text per predicted token; rows that predict other tokens (causal_cross: all of them) cannot be compared by "
        "it. Updates/s depend on what else was running."
    )
    markdown = "\n\n".join(text) + "\n"
    (folder / "table.md").write_text(markdown, encoding="utf-8")
    write_csv(folder / "table.csv", results)
    return markdown


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: table_2.py OUTPUT")
    sys.stdout.write(write(Path(sys.argv[1])))
