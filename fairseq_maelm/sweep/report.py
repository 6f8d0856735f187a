"""The report of a sweep: a table in Markdown, all runs in a CSV, and a figure of the spread."""

import csv
import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.files import write_bytes
from fairseq_maelm.sweep.results import (
    DIVERGED,
    FAILED,
    FINISHED,
    MISSING,
    Cell,
    Sweep,
    average,
    averaged_tasks,
    collect,
    published_rows,
)
from fairseq_maelm.sweep.spread import draw_spread
from fairseq_maelm.sweep.store import SweepFolder
from fairseq_maelm.sweep.tables import difference_of_medians, markdown_table
from fairseq_maelm.train_command import spelled

__all__ = ["as_csv", "as_markdown", "write_report"]

logger = logging.getLogger(__name__)

_NOTHING = "–"


def write_report(folder: Path, draws: bool = True, groups: Optional[Sequence[str]] = None) -> str:
    """Write report.md, runs.csv, and spread.png and .svg into a sweep's folder.

    Args:
        folder: of a sweep, finished or not.
        draws: whether to draw the figure; it is left out, with a warning, where matplotlib is missing.
        groups: of the paper's rows; all by default.

    Returns:
        the Markdown.

    Raises:
        FileNotFoundError: it is no sweep.
        ValueError: no recipe has such a group.
    """
    sweep = collect(SweepFolder(folder))
    text = as_markdown(sweep, groups)
    write_bytes(folder / "report.md", text.encode("utf-8"))
    write_bytes(folder / "runs.csv", as_csv(sweep).encode("utf-8"))
    if draws:
        try:
            draw_spread(sweep, folder, groups)
        except ValueError as error:
            logger.warning("%s", error)
    return text


def as_markdown(sweep: Sweep, groups: Optional[Sequence[str]] = None) -> str:
    """The tables: scores of all models beside the paper's, and the best settings with the number of runs behind them.

    Raises:
        ValueError: no recipe has such a group of published rows.
    """
    published = published_rows(sweep, groups)
    tasks = averaged_tasks(sweep)
    head = ["", *(f"{task} ({sweep.about['tasks'][task]['metric']})" for task in sweep.tasks), "AVG"]
    lines = [head]
    for model in sweep.models:
        cells = {task: sweep.cells[task, model] for task in sweep.tasks}
        mine = average({task: cell.scores for task, cell in cells.items()}, tasks)
        lines.append([model, *map(_cell, cells.values()), _number(mine)])
    for (group, name), scores in published.items():
        printed = ["/".join(map(_number, scores.get(task) or [math.nan])) for task in sweep.tasks]
        lines.append([f"paper, {group}: {name}", *printed, _number(average(scores, tasks))])
    parts = [_table(lines), _captions(sweep, tasks), *_differences(sweep), _table(_settings(sweep)), *_problems(sweep)]
    return "\n\n".join(parts) + "\n"


def _number(value: Optional[float]) -> str:
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
        "also chose the checkpoint and the setting. Runs that diverged or failed count as worse than any score."
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
    """What is not as it should be, run by run for those that failed."""
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
    """The first model against each other one, where all seeds of both have a score."""
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
    """All runs, one a line, with everything that was noted; an empty field where there is nothing."""
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
