"""A sweep's report: a Markdown table, all runs as CSV, and a figure of the spread.

The figure shows every run of the grid, the seeds of the best setting, and the paper's scores. Marker, filling and line
distinguish them without color.
"""

import csv
import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.files.optional_imports import import_pyplot, save_figure
from fairseq_maelm.studies import scores as results
from fairseq_maelm.studies.scores import DIVERGED, FAILED, FINISHED, MISSING, Cell, Sweep
from fairseq_maelm.studies.tables import difference_of_medians, markdown_table
from fairseq_maelm.training.options import spelled

logger = logging.getLogger(__name__)

_NOTHING = "–"
_COLUMNS = 4
_LINES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4)))
_GRID_COLOR, _BEST_COLOR, _PAPER_COLOR = "#8A8A8A", "#000000", "#0072B2"


def write_report(folder: Path, draws: bool = True, groups: Sequence[str] | None = None) -> str:
    """Write report.md, runs.csv, and spread.png and .svg into a sweep's folder, and return the Markdown.

    ``groups`` selects groups of the paper's rows, by default all. Without matplotlib there is a warning and no figure.
    """
    sweep = results.collect(folder)
    text = as_markdown(sweep, groups)
    write_bytes(folder / "report.md", text.encode("utf-8"))
    write_bytes(folder / "runs.csv", as_csv(sweep).encode("utf-8"))
    if draws:
        try:
            _draw_spread(sweep, folder, groups)
        except ValueError as error:
            logger.warning("%s", error)
    return text


def as_markdown(sweep: Sweep, groups: Sequence[str] | None = None) -> str:
    """Return the tables of all models' and the paper's scores, and of the best settings with their numbers of runs."""
    published = results.published_rows(sweep, groups)
    tasks = results.averaged_tasks(sweep)
    head = ["", *(f"{task} ({sweep.about['tasks'][task]['metric']})" for task in sweep.tasks), "AVG"]
    lines = [head]
    for model in sweep.models:
        cells = {task: sweep.cells[task, model] for task in sweep.tasks}
        mine = results.average({task: cell.scores for task, cell in cells.items()}, tasks)
        lines.append([model, *map(_cell, cells.values()), _number(mine)])
    for (group, name), scores in published.items():
        printed = ["/".join(map(_number, scores.get(task) or [math.nan])) for task in sweep.tasks]
        lines.append([f"paper, {group}: {name}", *printed, _number(results.average(scores, tasks))])
    parts = [_table(lines), _captions(sweep, tasks), *_differences(sweep), _table(_settings(sweep)), *_problems(sweep)]
    return "\n\n".join(parts) + "\n"


def _number(value: float | None) -> str:
    return _NOTHING if value is None or not math.isfinite(value) else f"{value:.1f}"


def _cell(cell: Cell) -> str:
    missing = cell.states.get(MISSING, 0)
    note = f" [{missing} runs missing]" if missing else ""
    if not cell.scores:
        return _NOTHING + note
    ranges = "/".join(f"{_number(min(scores))}..{_number(max(scores))}" for scores in zip(*cell.finished))
    seeds = f"; {cell.lost} of {len(cell.outcomes)} seeds without a score" if cell.lost else ""
    return f"{'/'.join(map(_number, cell.scores))} ({ranges}{seeds}){note}"


def _captions(sweep: Sweep, tasks: Sequence[str]) -> str:
    seeds = max((outcome.run.seed for outcome in sweep.outcomes), default=0)
    sets = [task for task in sweep.tasks if len(sweep.about["tasks"][task]["subsets"]) > 1]
    text = (
        f"Median over {seeds} seeds of the best setting (lowest..highest), in percent, on the validation data that "
        "also selected the checkpoint and the setting. Runs that diverged or failed count as worse than any score."
    )
    if sets:
        text += f" {', '.join(sets)}: one number for each validation set, averaged before AVG."
    left_out = [task for task in sweep.tasks if task not in tasks]
    if not tasks:
        return text + " AVG: no task has a final score of every model."
    return text + f" AVG: mean over {', '.join(tasks)}" + (f", without {', '.join(left_out)}." if left_out else ".")


def _settings(sweep: Sweep) -> list[list[str]]:
    lines = [["task", "model", "best setting", FINISHED, DIVERGED, FAILED, MISSING]]
    for (task, model), cell in sweep.cells.items():
        numbers = [str(cell.states.get(state, 0)) for state in lines[0][3:]]
        lines.append([task, model, _NOTHING if cell.setting is None else str(cell.setting), *numbers])
    return lines


def _problems(sweep: Sweep) -> list[str]:
    """Return notes on missing runs, and on each failed and diverged run."""
    failed = [each for each in sweep.outcomes if each.state == FAILED]
    diverged = [each for each in sweep.outcomes if each.state == DIVERGED]
    missing = sum(each.state == MISSING for each in sweep.outcomes)
    parts = []
    if missing:
        parts.append(f"{missing} of {len(sweep.outcomes)} runs are missing: the table is not final.")
    for state, outcomes in ((FAILED, failed), (DIVERGED, diverged)):
        if outcomes:
            lines = [f"- {each.run}: {each.result['failed']} (runs/{each.run.folder}/run.log)" for each in outcomes]
            parts.append("\n".join([f"Runs that {state}:", "", *lines]))
    return parts


def _differences(sweep: Sweep) -> list[str]:
    """Compare the first model with each other model on the tasks where all seeds of both have a score."""
    first, *others = sweep.models
    lines = [["", *(f"{first} - {other}" for other in others)]]
    for task in sweep.tasks:
        cells = {model: sweep.cells[task, model] for model in sweep.models}
        whole = {name: [each[0] for each in cell.finished] for name, cell in cells.items() if not cell.lost}
        found = [difference_of_medians(whole.get(first, []), whole.get(other, [])) for other in others]
        lines.append([task, *(_NOTHING if each is None else str(each) for each in found)])
    if all(cell == _NOTHING for line in lines[1:] for cell in line[1:]):
        return []
    return ["Differences of these medians, with 95 % intervals of a bootstrap over the seeds:", _table(lines)]


def _table(lines: Sequence[Sequence[str]]) -> str:
    return markdown_table(lines[0], lines[1:])


def as_csv(sweep: Sweep) -> str:
    """Return a line for each run with all its facts; a missing fact is an empty field."""
    searched = dict.fromkeys(name for each in sweep.outcomes for name, _ in each.run.setting.values)
    metrics = dict.fromkeys(name for each in sweep.outcomes for name in each.result.get("figures", {}))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    noted = ["epoch", "updates", "seconds"]
    head = ["task", "model", *searched, "seed", "state", "metric", "score", *metrics, *noted, "chosen", "reason", "log"]
    writer.writerow(head)
    for outcome in sweep.outcomes:
        run, result = outcome.run, outcome.result
        setting = {name: spelled(value) for name, value in run.setting.values}
        line: list[Any] = [run.task, run.model, *(setting.get(name, "") for name in searched), run.seed, outcome.state]
        line += [sweep.about["tasks"][run.task]["metric"], result.get("score", "")]
        line += [result.get("figures", {}).get(name, "") for name in metrics]
        line += [result.get(name, "") for name in noted]
        chosen = sweep.cells[run.task, run.model].setting == run.setting
        writer.writerow([*line, "yes" if chosen else "no", result.get("failed", ""), f"runs/{run.folder}/run.log"])
    return stream.getvalue()


def _draw_spread(sweep: Sweep, folder: Path, groups: Sequence[str] | None = None) -> None:
    """Draw ``folder``/spread.png and .svg with a panel for each task; raise a ValueError if nothing can be drawn."""
    tasks = [task for task in sweep.tasks if any(sweep.cells[task, model].finished for model in sweep.models)]
    if not tasks:
        raise ValueError("no figure: no run has finished")
    pyplot = import_pyplot()
    lines, columns = math.ceil(len(tasks) / _COLUMNS), min(len(tasks), _COLUMNS)
    with pyplot.rc_context({"svg.hashsalt": "spread", "font.size": 9}):
        width = max(2.8, 0.9 * len(sweep.models) + 1.2)
        figure, axes = pyplot.subplots(lines, columns, figsize=(width * columns + 1.6, 3.4 * lines), squeeze=False)
        for axis, task in zip(axes.flat, tasks):
            _panel(axis, sweep, task, results.published_rows(sweep, groups))
        for axis in axes.flat[len(tasks) :]:
            axis.set_axis_off()
        figure.tight_layout()
        handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.0, 0.97), fontsize=8)
        save_figure(figure, folder / "spread")


def _panel(axis: Any, sweep: Sweep, task: str, rows: dict[tuple[str, str], dict[str, list[float]]]) -> None:
    for place, model in enumerate(sweep.models):
        cell = sweep.cells[task, model]
        of_model = [each for each in sweep.outcomes if (each.run.task, each.run.model) == (task, model)]
        others = [each.scores[0] for each in of_model if each.state == FINISHED and each.run.setting != cell.setting]
        _points(axis, place - 0.18, others, {"marker": "o", "s": 14, "linewidths": 0.6, "color": _GRID_COLOR},
                "other settings, each seed", hollow=True)  # fmt: skip
        best = [scores[0] for scores in cell.finished]
        _points(axis, place + 0.18, best, {"marker": "D", "s": 20, "color": _BEST_COLOR}, "best setting, each seed")
        if cell.scores and math.isfinite(cell.scores[0]):
            ends = (place + 0.02, place + 0.34)
            axis.hlines(cell.scores[0], *ends, color=_BEST_COLOR, linewidth=1.8, label="its median")
    # A row has the same line style in every panel.
    for number, ((group, name), scores) in enumerate(rows.items()):
        score = (scores.get(task) or [math.nan])[0]
        if math.isfinite(score):
            style = _LINES[number % len(_LINES)]
            label = f"paper, {group}: {name}"
            axis.axhline(score, color=_PAPER_COLOR, linewidth=1.0, linestyle=style, label=label)
    axis.set_xticks(range(len(sweep.models)), sweep.models, rotation=20, ha="right")
    axis.set(title=task, ylabel=f"{sweep.about['tasks'][task]['metric']} (%)", xlim=(-0.6, len(sweep.models) - 0.4))
    axis.grid(axis="y", alpha=0.3)


def _points(
    axis: Any, center: float, values: Sequence[float], look: dict[str, Any], label: str, hollow: bool = False
) -> None:
    """Draw sorted values, shifted sideways in a fixed pattern so that equal ones are visible."""
    if not values:
        return
    ordered = sorted(values)
    shifts = [0.035 * ((number % 5) - 2) for number in range(len(ordered))]
    filling = {"facecolors": "none", "edgecolors": look.pop("color")} if hollow else {}
    axis.scatter([center + shift for shift in shifts], ordered, **look, **filling, label=label, zorder=3)
