"""The runs of a grid, and the selection of a part of it."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from fairseq_maelm.finetuning.recipe import Recipe, Search
from fairseq_maelm.options import named
from fairseq_maelm.studies.folder import read_settings
from fairseq_maelm.training.options import number_if_it_is_one, spelled

# Checkpoints of finished runs to keep.
KEEP = ("none", "best", "all")


# One value for each searched option, in the recipe's order: a point of the grid.
Setting = dict[str, Any]


def described(setting: Setting) -> str:
    """Return the text of a setting for tables and messages."""
    return ", ".join(f"{name} {spelled(value)}" for name, value in setting.items())


class Run(NamedTuple):
    """A fine-tuning run: the recipe's task, the checkpoint's name, a setting, and a seed, counted from 1."""

    task: str
    model: str
    setting: Setting
    seed: int

    @property
    def folder(self) -> PurePath:
        """The run's path inside the folder of all runs, which does not depend on the order of the setting's values."""
        values = "-".join(f"{name}_{spelled(value)}" for name, value in sorted(self.setting.items()))
        return PurePath(self.task, self.model, re.sub(r"[^\w.+-]", "_", values), f"seed_{self.seed}")

    def __str__(self) -> str:
        return f"{self.task}, {self.model}, {described(self.setting)}, seed {self.seed}"

    def marker(self, sweep: Path) -> Path:
        """Return the file for the run's result, in the folder of a sweep."""
        return sweep / "runs" / self.folder / "run.json"

    def checkpoints(self, sweep: Path) -> Path:
        """Return the folder of the run's checkpoints."""
        return sweep / "runs" / self.folder / "checkpoints"


def read_runs(sweep: Path) -> list[Run]:
    """Return the runs of all commands of a sweep."""
    return [Run(**content) for content in read_settings(sweep)["runs"].values()]


def expand(task: str, models: Sequence[str], search: Search, seeds: int) -> Iterator[Run]:
    """Yield the runs of a task, setting by setting, so that each setting is complete before the next one begins."""
    for values in itertools.product(*search.values()):
        setting = dict(zip(search, values))
        for seed in range(1, seeds + 1):
            for model in models:
                yield Run(task, model, setting, seed)


def parse_choice(text: str) -> tuple[str, tuple[Any, ...]]:
    """Convert an option's value that names a part of the grid, "lr=2e-5" or "epochs=2,3"."""
    name, values = named(text)
    return name, tuple(number_if_it_is_one(value) for value in values.split(","))


def choose(recipes: Sequence[Recipe], large: bool, choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Search]:
    """Return the searched values of each task, restricted to the choices; with ``large``, those of ``search_large``.

    Raises:
        ValueError: a recipe has no search_large, does not search a chosen option, or has none of its chosen values.
    """
    searches: dict[str, Search] = {}
    for recipe in recipes:
        search = recipe.search_large if large else recipe.search
        if search is None:
            raise ValueError(f"the recipe {recipe.path} has no search_large")
        searches[recipe.task] = dict(search)
    for name, wanted in choices.items():
        for task, search in searches.items():
            if name not in search:
                raise ValueError(f"--only {name}: {task} does not search it, only {', '.join(search)}")
            kept = tuple(value for value in search[name] if value in wanted)
            if not kept:
                values = ", ".join(map(spelled, search[name]))
                raise ValueError(f"--only {name}: {task} has none of these values, only {values}")
            search[name] = kept
        found = {value for search in searches.values() for value in search[name]}
        if unknown := [spelled(value) for value in wanted if value not in found]:
            raise ValueError(f"--only {name}: no recipe has the value {', '.join(unknown)}")
    return searches
