"""The plan of the study: which pretrainings it has, and their options."""

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study
import yaml

from fairseq_maelm.training.options import Machine

# A row with the weights as they are drawn: one update at learning rate 0.
RANDOM = "random weights"


class Pretraining(NamedTuple):
    """One pretraining.

    Attributes:
        row: name of a method, or of an additional row.
        budget: name in the plan, a number of floating-point operations.
        seed: of weights, order and masks; 0 for the trials that choose settings.
        options: of fairseq-train.
        trial: name of a setting that is tried; "" for the runs that are reported.
    """

    row: str
    budget: str
    seed: int
    options: dict[str, Any]
    trial: str = ""

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        words = [self.budget, self.row, self.trial, "" if self.trial else f"seed {self.seed}"]
        return ", ".join(word for word in words if word).replace(" ", "_").replace("%", "percent")

    def updates(self, vocabulary: int) -> int:
        """Return the updates that its operations allow."""
        return 1 if self.row == RANDOM else max(1, round(float(self.budget) / self.flops(vocabulary)))

    def flops(self, vocabulary: int) -> float:
        """Return the floating-point operations of an update."""
        max_tokens: int = self.options["max-tokens"]
        return study.training_flops(self.options, vocabulary) * max_tokens


class Plan:
    """The content of a file such as plan.yaml.

    Args:
        path: of the file.
        files: folder with the data of the tasks.
        scale: of those that the file declares.

    Raises:
        ValueError: there is no such scale, or a row or a budget names what the file does not declare.
    """

    def __init__(self, path: Path, files: Path, scale: str = "cpu") -> None:
        self.files = files
        self.content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        scales = self.content.pop("scales")
        if scale not in scales:
            raise ValueError(f"{path} has no scale {scale}, only {', '.join(scales)}")
        self.content |= scales[scale]
        self.methods: dict[str, dict[str, Any]] = self.content["methods"]
        self.rows: dict[str, dict[str, Any]] = self.content.get("rows", {})
        self.budgets: dict[str, dict[str, Any]] = {str(name): own for name, own in self.content["budgets"].items()}
        self.tasks: dict[str, dict[str, Any]] = self.content["tasks"]
        self.choices: dict[str, dict[str, Any]] = self.content["choices"]["options"]
        self.trial_budget = str(self.content["choices"]["budget"])
        known = {**self.methods, **self.rows}
        for name, budget in self.budgets.items():
            unknown = [row for row in budget.get("rows", []) if row not in known]
            if unknown or budget["shape"] not in self.content["shapes"]:
                raise ValueError(
                    f"{path}: budget {name} names {', '.join(unknown) or budget['shape']}, which is not declared"
                )
        parts = {str(name): parts for name, parts in self.content.get("intermediate", {}).items()}
        self.content["intermediate"], self.validations = parts, int(self.content["validations"])
        if any(self.validations % number for number in parts.values()):
            raise ValueError(f"{path}: intermediate must divide {self.validations}, the number of validations")
        if self.trial_budget not in self.budgets:
            raise ValueError(f"{path}: the budget of choices, {self.trial_budget}, is not declared")

    def method_of(self, row: str) -> str:
        """Return the method that a row belongs to; its choices are the row's too."""
        method: str = self.rows[row]["method"] if row in self.rows else row
        return method

    def options(self, row: str, budget: str, chosen: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of a row at a budget with what was chosen: name of a choice -> name of its setting."""
        shape = self.content["shapes"][self.budgets[budget]["shape"]]
        options = {**self.content["common"], **shape}
        for choice, setting in chosen.items():
            options |= self.choices[choice][setting]
        return {**options, **self.methods[self.method_of(row)], **self.rows.get(row, {}).get("options", {})}

    def trials(self, method: str, choice: str, chosen: Mapping[str, str]) -> Iterator[Pretraining]:
        """Yield a method's trials of one choice; choices not yet made take their first setting."""
        first = {name: next(iter(settings)) for name, settings in self.choices.items()}
        for setting in self.choices[choice]:
            settings = {**first, **chosen, choice: setting}
            options = self.options(method, self.trial_budget, settings)
            yield Pretraining(method, self.trial_budget, 0, options, " ".join(settings.values()))

    def pretrainings(
        self, chosen: Mapping[str, Mapping[str, str]], budgets: Collection[str] | None = None
    ) -> Iterator[Pretraining]:
        """Yield the pretrainings that are reported, small budgets first.

        Args:
            chosen: method -> name of a choice -> name of its setting.
            budgets: some of the plan's budgets; None for all. Random weights are listed at the largest one of each
                shape.
        """
        wanted = {name: own for name, own in self.budgets.items() if budgets is None or name in budgets}
        largest = {budget["shape"]: name for name, budget in wanted.items()}
        for name, budget in wanted.items():
            for seed in range(1, budget["seeds"] + 1):
                if largest[budget["shape"]] == name:
                    method = next(iter(self.methods))
                    options = {**self.options(method, name, chosen[method]), "lr": 0}
                    del options["hold"]
                    yield Pretraining(RANDOM, name, seed, options)
                for row in (*self.methods, *budget.get("rows", [])):
                    yield Pretraining(row, name, seed, self.options(row, name, chosen[self.method_of(row)]))

    def tasks_of(self, budget: str) -> dict[str, int]:
        """Return the tasks of a budget -> fine-tunings of each pretrained model."""
        repeats = self.budgets[budget]["repeats"]
        return {name: max(repeats, own.get("repeats", 1)) for name, own in self._wanted(self.tasks, budget).items()}

    def measurements(self, run: Pretraining) -> dict[str, dict[str, Any]]:
        """Return the measurements of a pretraining, by the names of their folders."""
        wanted = self._wanted(self.content["measurements"], run.budget)
        return {folder_name(name): {"command": own["command"], "own": own} for name, own in wanted.items()}

    def fine_tunings(self, run: Pretraining, vocabulary: int) -> dict[str, dict[str, Any]]:
        """Return the fine-tunings of a pretraining, also of checkpoints inside it, by the names of their folders."""
        wanted = [("", None, task, seed) for task, count in self.tasks_of(run.budget).items() for seed in range(count)]
        parts = self.updates_at(run, vocabulary).items()
        primary = [name for name in self.content["primary"] if name in self.tasks]
        wanted += [(f"{part}/", updates, task, 0) for part, updates in parts for task in primary]
        return {
            f"{part}{folder_name(task)}/seed_{seed + 1}": {
                "tuned": task,
                "updates": updates,
                "own": {**self.content["fine-tuning"], **self.tasks[task].get("fine-tuning", {}), "seed": seed + 1},
            }
            for part, updates, task, seed in wanted
        }

    def shape(self, run: Pretraining) -> str:
        """Return the name of a pretraining's shape."""
        name: str = self.budgets[run.budget]["shape"]
        return name

    def _wanted(self, declared: dict[str, dict[str, Any]], budget: str) -> dict[str, dict[str, Any]]:
        wanted = self.budgets[budget]["tasks"]
        return {name: own for name, own in declared.items() if wanted in ("all", *own.get("sets", []))}

    def updates_at(self, run: Pretraining, vocabulary: int) -> dict[str, int]:
        """Return the intermediate checkpoints that are evaluated, by name, and their numbers of updates.

        The plan's "intermediate" has the number of equal parts of a budget. Only methods have such checkpoints.
        """
        parts = self.content["intermediate"].get(run.budget, 1)
        if run.row not in self.methods or run.trial:
            return {}
        each = self.validations // parts * self._interval(run.updates(vocabulary))
        return {f"part_{part}": part * each for part in range(1, parts)}

    def _interval(self, updates: int) -> int:
        """Return the updates between two validations."""
        return max(1, math.ceil(updates / self.validations))

    def command(self, run: Pretraining, vocabulary: int, machine: Machine, data: Path, save_dir: Path) -> list[str]:
        """Return the command of a pretraining; it is validated at places of equal distance."""
        updates, decays = run.updates(vocabulary), run.row != RANDOM
        own = study.run_options(run.options, updates, self._interval(updates), machine, run.seed, decays)
        kept = self.updates_at(run, vocabulary).get("part_1")
        own |= {"max-tokens-valid": 8192, "keep-interval-updates-pattern": kept}
        return study.pretraining(data, save_dir, own)


def folder_name(name: str) -> str:
    """Return the name of the folder of a task or a measurement."""
    return name.replace(" ", "_")
