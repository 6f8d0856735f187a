"""A sweep's report: the best setting of each task and model, Markdown tables, and all runs as CSV."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from fairseq_maelm.files.atomic import write_bytes
from fairseq_maelm.launch.command_line import spelled
from fairseq_maelm.options import UsageError
from fairseq_maelm.sweep.folder import (
    DIVERGED,
    FAILED,
    FINISHED,
    MISSING,
    Outcome,
    described,
    outcomes_of,
    read_settings,
    run_name,
)
from fairseq_maelm.sweep.tables import difference_of_medians, markdown_table, with_interval

NOTHING = "–"
# The tasks in the paper's average.
GLUE = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B")


def median_with_losses(scores: Sequence[float], lost: int) -> float:
    """Return the median of the scores, where each of ``lost`` runs counts as minus infinity."""
    values = [*scores, *[-math.inf] * lost]
    return median(values) if values else -math.inf


class Cell:
    """The best setting of a model on a task: its ``outcomes``, one for each seed; empty if no setting has a score.

    The best setting has the highest median over seeds of the metric on the first validation set. Runs that diverged or
    failed count as minus infinity, so that no setting wins because its bad seeds failed. While runs are missing,
    settings with more ended seeds come first. Ties are broken by the mean, then by the order of the grid.

    ``states`` counts the runs of the whole grid. Of the best setting, ``finished`` has each finished seed's scores on
    all validation sets, ``lost`` counts seeds that diverged or failed, and ``scores`` has each set's median over seeds.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        settings: dict[str, list[Outcome]] = {}
        self.states = dict.fromkeys((FINISHED, DIVERGED, FAILED, MISSING), 0)
        for each in outcomes:
            settings.setdefault(described(each.axes["setting"]), []).append(each)
            self.states[each.state] += 1
        best = max(settings.values(), key=_rank, default=[])
        self.outcomes = best if best and _rank(best)[0] else []
        self.finished, self.lost = _scores(self.outcomes)
        self.scores = [median_with_losses(scores, self.lost) for scores in zip(*self.finished)]

    @property
    def complete(self) -> bool:
        """True if there is a score and no run is missing, so that the choice is final."""
        return not self.states[MISSING] and bool(self.scores)

    def __str__(self) -> str:
        note = f" [{self.states[MISSING]} runs missing]" if self.states[MISSING] else ""
        if not self.scores:
            return NOTHING + note
        ranges = "/".join(f"{_number(min(scores))}..{_number(max(scores))}" for scores in zip(*self.finished))
        seeds = f"; {self.lost} of {len(self.outcomes)} seeds without a score" if self.lost else ""
        return f"{'/'.join(map(_number, self.scores))} ({ranges}{seeds}){note}"


def _scores(outcomes: Sequence[Outcome]) -> tuple[list[list[float]], int]:
    finished = [each.result["scores"] for each in outcomes if each.state == FINISHED]
    return finished, sum(each.state in (DIVERGED, FAILED) for each in outcomes)


def _rank(outcomes: Sequence[Outcome]) -> tuple[bool, bool, float, float]:
    """Return the key of a setting: has a score, waits for no seed, median, mean. Numbers of seeds may differ."""
    finished, lost = _scores(outcomes)
    firsts = [scores[0] for scores in finished]
    median = median_with_losses(firsts, lost)
    is_whole = not any(each.state == MISSING for each in outcomes)
    return median > -math.inf, is_whole, median, mean(firsts) if firsts else -math.inf


class Sweep:
    """The content of a sweep's folder, finished or not."""

    def __init__(self, folder: Path) -> None:
        settings = read_settings(folder)
        self.folder, self.outcomes = folder, outcomes_of(folder)
        self.tasks: dict[str, dict[str, Any]] = settings["tasks"]
        self.models = list(settings["models"])
        self.cells = {
            (task, model): Cell([each for each in self.outcomes if _place(each) == (task, model)])
            for task in self.tasks
            for model in self.models
        }
        # Only tasks with final scores for all models are averaged; if the sweep has GLUE tasks, only these.
        candidates = [task for task in self.tasks if task in GLUE] or self.tasks
        self.averaged = [task for task in candidates if all(self.cells[task, each].complete for each in self.models)]


def _place(outcome: Outcome) -> tuple[str, str]:
    return outcome.axes["task"], outcome.axes["model"]


def average(scores: Mapping[str, Sequence[float]], tasks: Sequence[str]) -> float | None:
    """Average over each task's validation sets, then over tasks; return None if any score is missing."""
    values = [mean(scores[task]) for task in tasks if scores.get(task)]
    return mean(values) if values and len(values) == len(tasks) and not any(map(math.isnan, values)) else None


def write_report(folder: Path, groups: Sequence[str] | None = None) -> str:
    """Write report.md and runs.csv, with ``groups`` of rows from the paper (default: all); return the Markdown."""
    sweep = Sweep(folder)
    parts = [_score_table(sweep, groups), _captions(sweep), *_differences(sweep), _settings(sweep), *_problems(sweep)]
    text = "\n\n".join(parts) + "\n"
    write_bytes(folder / "report.md", text.encode("utf-8"))
    write_bytes(folder / "runs.csv", _as_csv(sweep).encode("utf-8"))
    return text


def _number(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.1f}"


def _score_table(sweep: Sweep, groups: Sequence[str] | None) -> str:
    lines = []
    for model in sweep.models:
        cells = {task: sweep.cells[task, model] for task in sweep.tasks}
        mine = average({task: cell.scores for task, cell in cells.items()}, sweep.averaged)
        lines.append([model, *map(str, cells.values()), _number(mine)])
    for name, scores in _published_rows(sweep, groups).items():
        printed = ["/".join(map(_number, scores.get(task) or [math.nan])) for task in sweep.tasks]
        lines.append([name, *printed, _number(average(scores, sweep.averaged))])
    return markdown_table(["", *(f"{task} ({own['metric']})" for task, own in sweep.tasks.items()), "AVG"], lines)


def _published_rows(sweep: Sweep, groups: Sequence[str] | None) -> dict[str, dict[str, list[float]]]:
    rows: dict[str, dict[str, list[float]]] = {}
    known = dict.fromkeys(group for task in sweep.tasks.values() for group in task["paper"])
    unknown = [group for group in groups or [] if group not in known]
    if unknown:
        raise UsageError(f"no recipe has published rows named {', '.join(unknown)}: choose from {', '.join(known)}")
    for group in known if groups is None else groups:
        for task, own in sweep.tasks.items():
            for model, scores in own["paper"].get(group, {}).items():
                rows.setdefault(f"paper, {group}: {model}", {})[task] = scores
    return rows


def _captions(sweep: Sweep) -> str:
    seeds = max((int(each.axes["seed"]) for each in sweep.outcomes), default=0)
    sets = [task for task, own in sweep.tasks.items() if len(own["subsets"]) > 1]
    text = (
        f"Median over {seeds} seeds of the best setting (lowest..highest), in percent, on the validation data that "
        "also selected the checkpoint and the setting. Runs that diverged or failed count as worse than any score."
    )
    if sets:
        text += f" {', '.join(sets)}: one number for each validation set, averaged before AVG."
    left_out = [task for task in sweep.tasks if task not in sweep.averaged]
    if not sweep.averaged:
        return text + " AVG: no task has a final score of every model."
    text += f" AVG: mean over {', '.join(sweep.averaged)}"
    return text + (f", without {', '.join(left_out)}." if left_out else ".")


def _settings(sweep: Sweep) -> str:
    lines = []
    for (task, model), cell in sweep.cells.items():
        setting = described(cell.outcomes[0].axes["setting"]) if cell.outcomes else NOTHING
        lines.append([task, model, setting, *map(str, cell.states.values())])
    return markdown_table(["task", "model", "best setting", FINISHED, DIVERGED, FAILED, MISSING], lines)


def _problems(sweep: Sweep) -> Iterator[str]:
    """Yield notes on missing runs, and on each failed and diverged run."""
    missing = sum(each.state == MISSING for each in sweep.outcomes)
    if missing:
        yield f"{missing} of {len(sweep.outcomes)} runs are missing: the table is not final."
    for state in (FAILED, DIVERGED):
        if outcomes := [each for each in sweep.outcomes if each.state == state]:
            lines = [
                f"- {run_name(each.axes)}: {each.result['failed']} ({_log(each, sweep.folder)})" for each in outcomes
            ]
            yield "\n".join([f"Runs that {state}:", "", *lines])


def _log(outcome: Outcome, folder: Path) -> Path:
    return outcome.marker.with_suffix(".log").relative_to(folder)


def _differences(sweep: Sweep) -> list[str]:
    """Compare the first model with every other model, on tasks where all seeds of both have a score."""
    first, *others = sweep.models
    lines = []
    for task in sweep.tasks:
        cells = {model: sweep.cells[task, model] for model in sweep.models}
        are_all = {name: len(cell.finished) == len(cell.outcomes) for name, cell in cells.items()}
        whole = {name: [each[0] for each in cell.finished if are_all[name]] for name, cell in cells.items()}
        found = [difference_of_medians(whole[first], whole[other]) for other in others]
        lines.append([task, *(NOTHING if each is None else with_interval("+.1f", *each) for each in found)])
    if all(cell == NOTHING for line in lines for cell in line[1:]):
        return []
    table = markdown_table(["", *(f"{first} - {other}" for other in others)], lines)
    return ["Differences of these medians, with 95 % intervals of a bootstrap over the seeds:", table]


def _as_csv(sweep: Sweep) -> str:
    """Return CSV with a line for each run; missing values are empty fields."""
    lines = []
    for each in sweep.outcomes:
        (task, model), result = _place(each), each.result
        line: dict[str, Any] = {"task": task, "model": model}
        line |= {name: spelled(value) for name, value in each.axes["setting"].items()}
        line |= {"seed": each.axes["seed"], "state": each.state, "metric": sweep.tasks[task]["metric"]}
        line |= {name: result.get(name) for name in ("score", "epoch", "updates", "seconds")}
        chosen = "yes" if each in sweep.cells[task, model].outcomes else "no"
        line |= {"chosen": chosen, "reason": result.get("failed"), "log": _log(each, sweep.folder)}
        lines.append({**line, **result.get("figures", {})})
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()
