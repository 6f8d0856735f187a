"""The scores of a sweep's runs, and the best setting of each task and model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from fairseq_maelm.options import UsageError
from fairseq_maelm.studies.engine import read_json
from fairseq_maelm.studies.folder import read_settings
from fairseq_maelm.studies.grid import Run, Setting, read_runs
from fairseq_maelm.studies.log import is_divergence

FINISHED, DIVERGED, FAILED, MISSING = "finished", "diverged", "failed", "not run"
# The tasks in the paper's average.
GLUE = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B")


class Outcome(NamedTuple):
    """The outcome of a run."""

    run: Run
    state: str  # FINISHED, DIVERGED, FAILED or MISSING
    scores: tuple[float, ...]  # the metric on each validation set; empty unless finished
    result: dict[str, Any]  # the content of the run's marker


@dataclass(frozen=True)
class Cell:
    """The best setting of a model on a task."""

    setting: Setting | None  # None if no setting has a score
    outcomes: list[Outcome]  # of the setting's seeds
    scores: tuple[float, ...]  # median over seeds on each validation set; empty without a setting
    states: dict[str, int]  # number of runs of the whole grid in each state

    @property
    def complete(self) -> bool:
        """True if there is a score and no run is missing, so that the choice is final."""
        return not self.states.get(MISSING) and bool(self.scores)

    @property
    def lost(self) -> int:
        """The number of seeds that diverged or failed."""
        return _lost(self.outcomes)

    @property
    def finished(self) -> list[tuple[float, ...]]:
        """The scores of the finished seeds."""
        return [outcome.scores for outcome in self.outcomes if outcome.scores]


class Sweep(NamedTuple):
    """The content of a sweep's folder."""

    about: dict[str, Any]  # of the study's settings
    outcomes: list[Outcome]  # of all runs
    cells: dict[tuple[str, str], Cell]  # (task, model) -> best setting

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.about["tasks"])

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(self.about["models"])


def collect(folder: Path) -> Sweep:
    """Read the folder of a sweep, finished or not; raise a FileNotFoundError if there is none."""
    outcomes = [_outcome(folder, run) for run in read_runs(folder)]
    about = read_settings(folder)["about"]
    cells = {
        (task, model): best_of([each for each in outcomes if (each.run.task, each.run.model) == (task, model)])
        for task in about["tasks"]
        for model in about["models"]
    }
    return Sweep(about, outcomes, cells)


def _outcome(folder: Path, run: Run) -> Outcome:
    result = read_json(run.marker(folder))
    if result is None:
        return Outcome(run, MISSING, (), {})
    if "failed" in result:
        return Outcome(run, DIVERGED if is_divergence(result["failed"]) else FAILED, (), result)
    return Outcome(run, FINISHED, tuple(result["scores"]), result)


def median_with_losses(scores: Sequence[float], lost: int) -> float:
    """Return the median, where each lost run counts as minus infinity."""
    values = [*scores, *[-math.inf] * lost]
    return median(values) if values else -math.inf


def best_of(outcomes: Sequence[Outcome]) -> Cell:
    """Choose the setting with the best median over seeds of the metric on the first validation set.

    Runs that diverged or failed count as worse than any score: a setting must not win because it loses its bad seeds.
    While runs are missing, settings with more seeds come first. Ties of the median are broken by the mean, then by the
    order of the grid.
    """
    by_setting: dict[str, list[Outcome]] = {}
    states: dict[str, int] = {}
    for outcome in outcomes:
        by_setting.setdefault(outcome.run.folder.parent.name, []).append(outcome)
        states[outcome.state] = states.get(outcome.state, 0) + 1
    best, chosen = (0, -math.inf, -math.inf), list[Outcome]()
    for group in by_setting.values():
        scores, lost = [each.scores[0] for each in group if each.scores], _lost(group)
        middle = median_with_losses(scores, lost)
        rank = (len(scores) + lost, middle, mean(scores) if scores else -math.inf)
        if middle > -math.inf and rank > best:
            best, chosen = rank, group
    if not chosen:
        return Cell(None, [], (), states)
    sets = zip(*(each.scores for each in chosen if each.scores))
    medians = tuple(median_with_losses(scores, _lost(chosen)) for scores in sets)
    return Cell(chosen[0].run.setting, chosen, medians, states)


def _lost(outcomes: Sequence[Outcome]) -> int:
    return sum(each.state in (DIVERGED, FAILED) for each in outcomes)


def averaged_tasks(sweep: Sweep) -> list[str]:
    """Return the tasks to average: those with final scores of all models, only GLUE's if the sweep has any of GLUE."""
    candidates = [task for task in sweep.tasks if task in GLUE] or sweep.tasks
    return [task for task in candidates if all(sweep.cells[task, model].complete for model in sweep.models)]


def average(scores: Mapping[str, Sequence[float]], tasks: Sequence[str]) -> float | None:
    """Return the mean over tasks of the mean over their validation sets; None if any score is missing."""
    values = [mean(scores[task]) for task in tasks if scores.get(task)]
    return mean(values) if values and len(values) == len(tasks) and not any(map(math.isnan, values)) else None


def published_rows(sweep: Sweep, groups: Sequence[str] | None) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the paper's rows of some groups, by default all: (group, model) -> task -> scores.

    Raises:
        UsageError: no recipe has such a group.
    """
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    known = dict.fromkeys(group for task in sweep.about["tasks"].values() for group in task["paper"])
    unknown = [group for group in groups or [] if group not in known]
    if unknown:
        raise UsageError(f"no recipe has published rows named {', '.join(unknown)}: choose from {', '.join(known)}")
    for group in known if groups is None else groups:
        for task, about in sweep.about["tasks"].items():
            for model, scores in about["paper"].get(group, {}).items():
                rows.setdefault((group, model), {})[task] = scores
    return rows
