"""A sweep's report: Markdown tables, and all runs as CSV."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.studies import scores as results
from fairseq_maelm.studies.grid import described
from fairseq_maelm.studies.scores import DIVERGED, FAILED, FINISHED, MISSING, Cell, Sweep
from fairseq_maelm.studies.tables import difference_of_medians, markdown_table
from fairseq_maelm.training.options import spelled

_NOTHING = "–"


def write_report(folder: Path, groups: Sequence[str] | None = None) -> str:
    """Write report.md and runs.csv into a sweep's folder, and return the Markdown.

    ``groups`` selects groups of the paper's rows, by default all.
    """
    sweep = results.collect(folder)
    text = as_markdown(sweep, groups)
    write_bytes(folder / "report.md", text.encode("utf-8"))
    write_bytes(folder / "runs.csv", as_csv(sweep).encode("utf-8"))
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
    parts = [_table(lines), _captions(sweep, tasks), *_differences(sweep), _settings(sweep), *_problems(sweep)]
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


def _settings(sweep: Sweep) -> str:
    lines = [["task", "model", "best setting", FINISHED, DIVERGED, FAILED, MISSING]]
    for (task, model), cell in sweep.cells.items():
        numbers = [str(cell.states.get(state, 0)) for state in lines[0][3:]]
        lines.append([task, model, _NOTHING if cell.setting is None else described(cell.setting), *numbers])
    return _table(lines)


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
    lines = []
    for outcome in sweep.outcomes:
        run, result = outcome.run, outcome.result
        line: dict[str, Any] = {"task": run.task, "model": run.model}
        line |= {name: spelled(value) for name, value in run.setting.items()}
        line |= {"seed": run.seed, "state": outcome.state, "metric": sweep.about["tasks"][run.task]["metric"]}
        line |= {name: result.get(name) for name in ("score", "epoch", "updates", "seconds")}
        chosen = sweep.cells[run.task, run.model].setting == run.setting
        line |= {"chosen": "yes" if chosen else "no", "reason": result.get("failed")}
        lines.append({**line, "log": f"runs/{run.folder}/run.log", **result.get("figures", {})})
    stream = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(stream, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()
