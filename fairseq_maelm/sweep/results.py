"""The scores of a sweep's runs, and the best setting of each task and model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, NamedTuple

from fairseq_maelm.arguments import UsageError
from fairseq_maelm.sweep.grid import Run, Setting
from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.log import is_divergence
from fairseq_maelm.sweep.store import SweepFolder

FINISHED, DIVERGED, FAILED, MISSING = "finished", "diverged", "failed", "not run"
# The tasks that the paper's average is made of.
GLUE = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B")


class Outcome(NamedTuple):
    """A run with its state ("finished", "diverged", "failed", "not run"), the metric on each validation set, and the
    content of its marker."""

    run: Run
    state: str
    scores: tuple[float, ...]
    result: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """The best setting of a model on a task.

    Attributes:
        setting: chosen; None if no setting has a score.
        outcomes: of its seeds.
        scores: on each validation set the median over seeds; empty without a setting.
        states: how many runs of the whole grid are in which state.
    """

    setting: Setting | None
    outcomes: list[Outcome]
    scores: tuple[float, ...]
    states: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether the choice is final, for no run is missing, and there is a score."""
        return not self.states.get(MISSING) and bool(self.scores)

    @property
    def lost(self) -> int:
        """The number of seeds that diverged or failed."""
        return _lost(self.outcomes)

    @property
    def finished(self) -> list[tuple[float, ...]]:
        """The scores of the seeds that have some."""
        return [outcome.scores for outcome in self.outcomes if outcome.scores]


class Sweep(NamedTuple):
    """The content of a folder: "about" of ``sweep.json``, all runs, and the best setting by task and model."""

    about: dict[str, Any]
    outcomes: list[Outcome]
    cells: dict[tuple[str, str], Cell]

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(self.about["tasks"])

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(self.about["models"])


def collect(folder: SweepFolder) -> Sweep:
    """Read the folder of a sweep, finished or not; raise a FileNotFoundError where there is none."""
    outcomes = [_outcome(folder, run) for run in folder.runs()]
    about = folder.read()["about"]
    cells = {
        (task, model): best_of([each for each in outcomes if (each.run.task, each.run.model) == (task, model)])
        for task in about["tasks"]
        for model in about["models"]
    }
    return Sweep(about, outcomes, cells)


def _outcome(folder: SweepFolder, run: Run) -> Outcome:
    result = read_json(folder.marker(run))
    if result is None:
        return Outcome(run, MISSING, (), {})
    if "failed" in result:
        return Outcome(run, DIVERGED if is_divergence(result["failed"]) else FAILED, (), result)
    return Outcome(run, FINISHED, tuple(result["scores"]), result)


def median_with_losses(scores: Sequence[float], lost: int) -> float:
    """Return the median, runs without a score counted as worse than any; minus infinity if it falls on one of them."""
    values = [*scores, *[-math.inf] * lost]
    return median(values) if values else -math.inf


def best_of(outcomes: Sequence[Outcome]) -> Cell:
    """Choose the setting with the best median over seeds of the metric on the first validation set.

    Runs that diverged or failed count as worse than any score: a setting must not win by the seeds that it survives.
    While runs are missing, settings are compared by the seeds that they have, those with more of them first. Equal
    medians are decided by the mean, then by the order of the grid.
    """
    by_setting: dict[str, list[Outcome]] = {}
    states: dict[str, int] = {}
    for outcome in outcomes:
        by_setting.setdefault(outcome.run.setting.name, []).append(outcome)
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
    """Return the tasks that an average is made of: those where every model has its final score.

    With tasks of GLUE in the sweep it is made of those alone, as in the paper.
    """
    candidates = [task for task in sweep.tasks if task in GLUE] or sweep.tasks
    return [task for task in candidates if all(sweep.cells[task, model].complete for model in sweep.models)]


def average(scores: Mapping[str, Sequence[float]], tasks: Sequence[str]) -> float | None:
    """Return the mean over tasks, several validation sets of one averaged first; None unless all have all scores."""
    values = [mean(scores[task]) for task in tasks if scores.get(task)]
    return mean(values) if values and len(values) == len(tasks) and not any(map(math.isnan, values)) else None


def published_rows(sweep: Sweep, groups: Sequence[str] | None) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the paper's rows of these groups, by default of all: (group, model) -> task -> scores.

    Raises:
        UsageError: no recipe has such a group.
    """
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    known = dict.fromkeys(group for task in sweep.about["tasks"].values() for group in task["paper"])
    unknown = [group for group in groups or [] if group not in known]
    if unknown:
        raise UsageError(f"no recipe has published rows named {', '.join(unknown)}, but {', '.join(known) or 'none'}")
    for group in known if groups is None else groups:
        for task, about in sweep.about["tasks"].items():
            for model, scores in about["paper"].get(group, {}).items():
                rows.setdefault((group, model), {})[task] = scores
    return rows
