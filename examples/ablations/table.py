#!/usr/bin/env python3
"""Write the table of a study with the paper's numbers; it can be made again from the folder.

python examples/ablations/table.py OUTPUT
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml
from study import words_of

from fairseq_maelm.files.optional_imports import import_pyplot
from fairseq_maelm.studies.engine import read_json
from fairseq_maelm.studies.folder import SETTINGS
from fairseq_maelm.studies.tables import markdown_table

MISSING = "–"
_ANSWERS = ("exact", "answer_f1")
PLACES = {"fine-tuning": lambda places: words_of(places["plan"]["fine-tuning"])}


class Row(NamedTuple):
    """A row of plan.yaml: group and setting in the paper, its GLUE average, and the share of masks that stay."""

    name: str
    group: str
    setting: str
    paper: float | None = None
    delta: float | None = None
    same: str = ""


_PLAN = yaml.safe_load((Path(__file__).parent / "plan.yaml").read_text(encoding="utf-8"))
ROWS = {
    name: Row(name, own["group"], own["setting"], own.get("paper"), own.get("delta"), own.get("same-as", ""))
    for name, own in _PLAN["rows"].items()
}


def pretraining_marker(folder: Path, row: str) -> Path:
    """Return the file that gets the result of a pretraining, or the reason of its failure."""
    return folder / "runs" / row / "pretraining.json"


def fine_tuning_marker(folder: Path, row: str, task: str, seed: int) -> Path:
    """Return the file that gets the result of a fine-tuning, or the reason of its failure."""
    return folder / "runs" / row / task / f"seed_{seed}.json"


class Task(NamedTuple):
    """The scores of a row on a task.

    Attributes:
        scores: one for each seed that is finished, in percent.
        failed: how many seeds failed.
        seeds: how many there are to be.
        answers: True for answers to questions, which are not in an average over tasks of sentences.
    """

    scores: list[float]
    failed: int
    seeds: int
    answers: bool = False

    @property
    def median(self) -> float | None:
        """Over the finished seeds."""
        return median(self.scores) if self.scores else None

    @property
    def complete(self) -> bool:
        """True if every seed has a score."""
        return len(self.scores) == self.seeds

    def __str__(self) -> str:
        missing = self.seeds - len(self.scores) - self.failed
        notes = [f"{number} {what}" for number, what in ((self.failed, "failed"), (missing, "not run")) if number]
        return " ".join([_number(self.median), *([f"({', '.join(notes)})"] if notes else [])])


class Result(NamedTuple):
    """A row with what was measured.

    Attributes:
        row: of the study.
        tasks: by name.
        loss: on held-out text after pretraining, in bits per predicted token.
        speed: updates a second in pretraining.
        state: "" if pretraining is finished, otherwise what is the matter.
    """

    row: Row
    tasks: dict[str, Task]
    loss: float | None
    speed: float | None
    state: str

    @property
    def average(self) -> float | None:
        """Of the medians over the tasks of sentences, None unless every seed of every one has a score."""
        tasks = [task for task in self.tasks.values() if not task.answers]
        medians = [task.median for task in tasks if task.complete]
        found = [value for value in medians if value is not None]
        return mean(found) if found and len(found) == len(tasks) else None


def collect(folder: Path) -> list[Result]:
    """Read what a study's folder holds."""
    settings = read_json(folder / SETTINGS)
    if settings is None:
        raise SystemExit(f"{folder} is not an ablation study: there is no {SETTINGS}")
    return [_result(folder, row, settings) for name, row in ROWS.items() if name in settings["rows"]]


def _result(folder: Path, row: Row, settings: dict[str, Any]) -> Result:
    pretraining = read_json(pretraining_marker(folder, row.name))
    seeds = range(1, settings["seeds"] + 1)
    tasks = {}
    for task in settings["tasks"]:
        markers = [read_json(fine_tuning_marker(folder, row.name, task, seed)) for seed in seeds]
        found = [marker for marker in markers if marker is not None]
        scores = [float(marker["score"]) for marker in found if "failed" not in marker]
        answers = settings["tasks"][task].get("metric") in _ANSWERS
        tasks[task] = Task(scores, len(found) - len(scores), len(seeds), answers)
    if pretraining is None:
        return Result(row, tasks, None, None, "not finished")
    state = f"failed: {pretraining['failed']}" if "failed" in pretraining else ""
    return Result(row, tasks, pretraining.get("loss"), pretraining.get("updates_per_second"), state)


def difference(value: float | None, reference: float | None) -> float | None:
    """Return the difference of a value and a reference, or None if one is missing."""
    return None if value is None or reference is None else value - reference


def _number(value: float | None, form: str = ".1f") -> str:
    return MISSING if value is None else format(value, form)


def reference_average(results: Iterable[Result]) -> float | None:
    """Return the average of the row with which all others are compared."""
    return next((result.average for result in results if result.row.name == "maelm"), None)


def main_table(results: Sequence[Result]) -> str:
    """Table 2, and the rows of Figure 4, in Markdown."""
    tasks = list(results[0].tasks) if results else []
    head = ["group", "setting", "row", "paper: GLUE", "paper: to MAE-LM"]
    head += [*tasks, "average", "to MAE-LM", "bits", "updates/s", ""]
    lines = []
    reference, paper = reference_average(results), ROWS["maelm"].paper
    for result in results:
        row = result.row
        lines.append(
            [
                *(row.group, row.setting, row.name),
                *(_number(row.paper), _number(difference(row.paper, paper), "+.1f")),
                *map(str, result.tasks.values()),
                *(_number(result.average), _number(difference(result.average, reference), "+.1f")),
                *(_number(result.loss, ".3f"), _number(result.speed, ".2f"), result.state),
            ]
        )
    return markdown_table(head, lines)


def transition(results: Sequence[Result]) -> list[Result]:
    """Return the series of Figure 4 from MAE-LM (delta = 0) to masked language modeling with a decoder (delta = 1).

    The end is taken from the row that computes the same where its own was not asked for.
    """
    by_name = {result.row.name: result for result in results}
    for name, row in ROWS.items():
        if row.same in by_name and name not in by_name:
            by_name[name] = by_name[row.same]._replace(row=row)
    series = [(result.row.delta, result) for result in by_name.values() if result.row.delta is not None]
    return [result for _, result in sorted(series, key=lambda pair: pair[0])]


def transition_table(series: Sequence[Result]) -> str:
    """Return the series of Figure 4 in Markdown."""
    tasks = list(series[0].tasks) if series else []
    lines = []
    for result in series:
        measured = [*map(str, result.tasks.values()), _number(result.average), _number(result.loss, ".3f")]
        lines.append([_number(result.row.delta, "g"), _number(result.row.paper), *measured])
    return markdown_table(["delta", "paper: GLUE", *tasks, "average", "bits"], lines)


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
        points = [(result.row.delta, score) for result, score in zip(series, scores) if score is not None]
        axis.plot(*zip(*points), "o-")
        axis.set(xlabel="delta: share of masks that the encoder sees", ylabel=name)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=160, bbox_inches="tight")
    pyplot.close(figure)


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """Write everything that was measured, an empty field where there is nothing."""
    tasks = list(results[0].tasks) if results else []
    columns = ["row", "group", "setting", "delta", "paper_glue", "average", "bits", "updates_per_second", "state"]
    for task in tasks:
        columns += [f"{task}_{figure}" for figure in ("median", "lowest", "highest", "scores", "failed")]
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        for result in results:
            row = result.row
            line: list[Any] = [row.name, row.group, row.setting, row.delta, row.paper, result.average]
            line += [result.loss, result.speed, result.state]
            for task in result.tasks.values():
                ends = [min(task.scores), max(task.scores)] if task.scores else [None, None]
                line += [task.median, *ends, " ".join(f"{score:g}" for score in task.scores), task.failed]
            writer.writerow(line)


def write(folder: Path) -> str:
    """Write table.md, table.csv and figure_4.csv, with matplotlib also figure_4.png, from what is finished.

    Returns:
        the Markdown.
    """
    results = collect(folder)
    text = [main_table(results)]
    series = transition(results)
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
        raise SystemExit("usage: table.py OUTPUT")
    sys.stdout.write(write(Path(sys.argv[1])))
