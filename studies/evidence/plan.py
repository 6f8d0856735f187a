"""The plan of the study: which pretrainings it has, and their options."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study

DEFAULT = Path(__file__).resolve().with_name("plan.yaml")
# A row with the weights as they are drawn: one update at learning rate 0.
RANDOM = "random weights"


class Pretraining(NamedTuple):
    """One pretraining."""

    row: str  # name of a method, or of an additional row
    budget: str  # name in the plan, a number of FLOPs
    seed: int  # of weights, order and masks; 0 for the trials that choose settings
    options: dict[str, Any]  # of fairseq-train
    trial: str = ""  # name of a setting that is tried; "" for the runs that are reported

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        words = [self.budget, self.row, self.trial or f"seed {self.seed}"]
        return ", ".join(words).replace(" ", "_").replace("%", "percent")

    def updates(self, vocabulary: int) -> int:
        """Return the updates that its FLOPs allow."""
        return 1 if self.row == RANDOM else max(1, round(float(self.budget) / self.flops(vocabulary)))

    def flops(self, vocabulary: int) -> float:
        """Return the FLOPs of an update."""
        max_tokens: int = self.options["max-tokens"]
        return study.training_flops(self.options, vocabulary) * max_tokens


class Plan:
    """The content of plan.yaml, with what another plan and one of its scales declare instead.

    ``wanted`` are the budgets whose pretrainings are reported, None for all. An unknown scale or budget is a
    ValueError, as is a budget that names what the plan does not declare.
    """

    def __init__(self, path: Path = DEFAULT, scale: str = "cpu", wanted: Sequence[str] | None = None) -> None:
        content: dict[str, Any] = {}
        for each in (DEFAULT, path):
            content |= yaml.safe_load(each.read_text(encoding="utf-8"))
        scales = content.pop("scales")
        if scale not in scales:
            raise ValueError(f"{path} has no scale {scale}: give one of {', '.join(scales)}")
        self.content = {**content, **scales[scale]}
        self.methods: dict[str, dict[str, Any]] = self.content["methods"]
        self.rows: dict[str, dict[str, Any]] = self.content["rows"]
        self.budgets: dict[str, dict[str, Any]] = self.content["budgets"]
        self.wanted = list(self.budgets) if wanted is None else wanted
        self.tasks: dict[str, dict[str, Any]] = self.content["tasks"]
        self.choices: dict[str, dict[str, Any]] = self.content["choices"]
        for name in set(self.wanted) - set(self.budgets):
            raise ValueError(f"{path} has no budget {name}: give one of {', '.join(self.budgets)}")
        for name, budget in self.budgets.items():
            unknown = [*({budget["shape"]} - {*self.content["shapes"]}), *({*budget.get("rows", ())} - {*self.rows})]
            if unknown:
                raise ValueError(f"{path}: budget {name} names {unknown[0]}: declare it in shapes or rows")

    def settings(self) -> dict[str, Any]:
        """Return what decides the results; rows, budgets and tasks may be added to a study."""
        names = ("words", "corpus", "common", "shapes", "methods", "choices", "fine-tuning")
        own = self.content["fine-tuning-of"]
        return {
            "plan": {name: self.content[name] for name in names},
            "models": {**self.rows, **self.budgets},
            "tasks": {name: [task, own.get(name)] for name, task in self.tasks.items()},
        }

    def method_of(self, row: str) -> str:
        """Return the method that a row belongs to; its choices are the row's too."""
        method: str = self.rows[row]["method"] if row in self.rows else row
        return method

    def shape(self, run: Pretraining) -> str:
        """Return the name of a pretraining's shape."""
        name: str = self.budgets[run.budget]["shape"]
        return name

    def options(self, row: str, budget: str, chosen: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of a row at a budget with what was chosen: name of a choice -> name of its setting."""
        options = {**self.content["common"], **self.content["shapes"][self.budgets[budget]["shape"]]}
        for choice, setting in chosen.items():
            options |= self.choices[choice][setting]
        return {**options, **self.methods[self.method_of(row)], **self.rows.get(row, {}).get("options", {})}

    def trials(self, method: str, choice: str, chosen: Mapping[str, str]) -> Iterator[Pretraining]:
        """Yield a method's trials of one choice; choices not yet made take their first setting."""
        first = {name: next(iter(settings)) for name, settings in self.choices.items()}
        for setting in self.choices[choice]:
            settings, budget = {**first, **chosen, choice: setting}, self.content["choice-budget"]
            yield Pretraining(method, budget, 0, self.options(method, budget, settings), " ".join(settings.values()))

    def all_trials(self, chosen: Mapping[str, Mapping[str, str]]) -> list[Pretraining]:
        """Return the trials of all choices: method -> name of a choice -> name of the setting that was chosen."""
        names, trials = list(self.choices), {}
        for place, choice in enumerate(names):
            for method, own in chosen.items():
                made = {name: own[name] for name in names[:place]}
                trials.update((run.name, run) for run in self.trials(method, choice, made))
        return list(trials.values())

    def pretrainings(self, chosen: Mapping[str, Mapping[str, str]]) -> Iterator[Pretraining]:
        """Yield the pretrainings that are reported, small budgets first; random weights at each shape's largest budget.

        ``chosen`` maps a method to the names of its choices and of their settings; a method without is a ValueError.
        """
        if missing := [method for method in self.methods if method not in chosen]:
            raise ValueError(f"the records lack the settings of {missing[0]}: run the stage choose first")
        wanted = {name: own for name, own in self.budgets.items() if name in self.wanted}
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
        own = self.budgets[budget]
        wanted = {"all": self.tasks, "small": self.content["small-tasks"]}.get(own["tasks"], ())
        return {name: max(own["repeats"], self.tasks[name].get("repeats", 1)) for name in wanted}

    def evaluations(self, run: Pretraining, vocabulary: int) -> dict[str, dict[str, Any]]:
        """Return the measurements and fine-tunings of a pretraining, by the names of their folders.

        They are the plan's declaration of a measurement with its "name"; or the "task" of a fine-tuning, "updates" of
        the checkpoint (None for the last one) and "options" of `maelm finetune`.
        """
        found = {name: own for name, own in self.measurements(run.budget).items() if "command" in own}
        wanted = [("", None, task, seed) for task, count in self.tasks_of(run.budget).items() for seed in range(count)]
        primary = [name for name in self.content["primary"] if name in self.tasks]
        for part, updates in self.updates_at(run, vocabulary).items():
            wanted += [(f"{part}/", updates, task, 0) for task in primary]
        for part, updates, task, seed in wanted:
            own = {**self.content["fine-tuning"], **self.content["fine-tuning-of"].get(task, {}), "seed": seed + 1}
            name = f"{part}{folder_name(task)}/seed_{seed + 1}"
            found[name] = {"task": task, "updates": updates, "options": own}
        return found

    def measurements(self, budget: str) -> dict[str, dict[str, Any]]:
        """Return the measurements of a budget's pretrainings, by the names of their folders."""
        declared = {} if self.budgets[budget]["tasks"] == "none" else self.content["measurements"]
        return {folder_name(name): {"name": name, **own} for name, own in declared.items()}

    def updates_at(self, run: Pretraining, vocabulary: int) -> dict[str, int]:
        """Return the intermediate checkpoints that are evaluated, by name, and their numbers of updates.

        The plan's "intermediate" has the number of equal parts of a budget. Only methods have such checkpoints.
        """
        parts = self.content["intermediate"].get(run.budget, 1)
        if run.row not in self.methods or run.trial:
            return {}
        each = self.content["validations"] // parts * self.interval(run.updates(vocabulary))
        return {f"part_{part}": part * each for part in range(1, parts)}

    def interval(self, updates: int) -> int:
        """Return the updates between two validations."""
        return max(1, math.ceil(updates / self.content["validations"]))


def folder_name(name: str) -> str:
    """Return the name of the folder of a task or a measurement."""
    return name.replace(" ", "_")
