"""Recipes: YAML files with the options of a fine-tuning task, its search space, and the paper's scores.

A recipe is given by its path or, for recipes in the package, by its name. It inherits from the recipes in its list
``defaults``, which are looked up in its own folder and in the package.
"""

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_maelm.launch.options import load_yaml, number_if_it_is_one, spelled
from fairseq_maelm.options import USER_DIR, number

# Option -> values to try.
Search = dict[str, tuple[Any, ...]]

RECIPES = USER_DIR / "recipes" / "finetuning"
# Every search has these options of `maelm finetune`; any other name in it is an option of fairseq-train. Each has the
# function that converts its values.
SEARCHED = {
    "lr": number(float, 0),
    "batch-size": number(int, 1),
    "epochs": number(int, 1),
    "warm-up": number(float, 0, below=1),
}
# Options of fairseq-train that follow from options of `maelm finetune`; the first of several decides the others.
OWNED = {
    "save-dir": "--output",
    "finetune-from-model": "--checkpoint",
    "arch": "--checkpoint",
    "seed": "--seed",
    "lr": "--lr",
    "batch-size": "--batch-size",
    **dict.fromkeys(("max-epoch", "max-update", "total-num-update"), "--epochs"),
    "warmup-updates": "--warm-up",
    "best-checkpoint-metric": "--metric",
}
# Options that the sweep sets in every run.
RESERVED = (*OWNED, "restore-file", "user-dir", "log-format", "log-file", "no-save", "epochs", "warm-up")


@dataclass
class Recipe:
    """The settings of a fine-tuning task, with types that OmegaConf checks.

    Attributes:
        task: the task's name in tables.
        data: the task's folder, relative to the folder of all data.
        metric: the validation metric for choosing the checkpoint and the setting; larger is better, except for the
            loss, which can choose checkpoints only.
        metrics: the metrics to report, ``metric`` included.
        options: options of fairseq-train, without leading dashes; True is a flag.
        search: option -> values to try; must contain lr, batch-size, epochs (passes over the training data) and warm-up
            (fraction of the updates).
        search_large: search space of large models; None to use ``search``.
        setting: one value for each name in ``search``, for a single run.
        paper: group -> model -> published scores in percent, one for each validation set; NaN if unpublished.
        path: the file, or the name of a recipe of the package.
    """

    task: str = MISSING
    data: str = MISSING
    metric: str = MISSING
    options: dict[str, Any] = MISSING
    search: dict[str, Any] = MISSING
    search_large: dict[str, Any] | None = None
    metrics: list[str] = field(default_factory=list)
    setting: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    path: str = ""

    @property
    def subsets(self) -> tuple[str, ...]:
        """The validation sets; the checkpoint and the setting are chosen on the first."""
        return tuple(str(self.options.get("valid-subset", "valid")).split(","))


def check_name(name: Any, what: str) -> str:
    """Return the name if it is valid in tables and paths, otherwise raise ValueError."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+ -]*", name)):
        raise ValueError(f"{what} {name!r} must consist of letters, digits, spaces, '.', '+', '-' and '_'")
    return name


def read_recipes(paths: Iterable[Path]) -> list[Recipe]:
    """Read recipes for a sweep; raise ValueError if two recipes have the same task, or the loss is their metric."""
    recipes: dict[str, Recipe] = {}
    for path in paths:
        recipe = read_recipe(path)
        if recipe.task in recipes:
            raise ValueError(
                f"two recipes for the task {recipe.task}: {recipes[recipe.task].path} and {path}; give one of them"
            )
        if recipe.metric == "loss":
            raise ValueError(f"the recipe {path}: a sweep chooses by a metric of which more is better, not by the loss")
        recipes[recipe.task] = recipe
    return list(recipes.values())


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a file, or from the package by its name.

    Raises:
        FileNotFoundError: there is no such recipe.
        ValueError: its content is invalid.
    """
    content = load_yaml(path, RECIPES)
    try:
        typed: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(Recipe), content))
        if missing := [name for name, value in typed.items() if value == MISSING]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return _checked(Recipe(**{**typed, "path": str(path)}))
    except (ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"the recipe {path}: {' '.join(str(error).split())}") from error


def _checked(recipe: Recipe) -> Recipe:
    check_name(recipe.task, "task")
    for name in recipe.options:
        if name in RESERVED:
            raise ValueError(
                f"{name} is set by the sweep or by the recipe's search: remove it from the recipe's options"
            )
    recipe.metrics = list(dict.fromkeys([recipe.metric, *recipe.metrics]))
    recipe.search = _search(recipe.search, "search")
    if recipe.search_large is not None:
        recipe.search_large = _search(recipe.search_large, "search_large")
    # The recipe's value if it is among the searched ones, or else the first.
    chosen = {name: number_if_it_is_one(value) for name, value in recipe.setting.items()}
    recipe.setting = {
        name: chosen[name] if chosen.get(name) in values else values[0] for name, values in recipe.search.items()
    }
    recipe.paper = {
        group: {model: tuple(map(float, each if isinstance(each, list) else [each])) for model, each in rows.items()}
        for group, rows in recipe.paper.items()
    }
    return recipe


def _search(search: Mapping[str, Any], what: str) -> Search:
    missing = [name for name in SEARCHED if name not in search]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    found: Search = {}
    for name, values in search.items():
        listed = [number_if_it_is_one(value) for value in (values if isinstance(values, list) else [values])]
        if not listed or len(set(map(str, listed))) < len(listed):
            raise ValueError(f"{what}: {name} must be a list of different values, not {values}")
        for value in listed if name in SEARCHED else ():
            try:
                SEARCHED[name](spelled(value))
            except ArgumentTypeError as error:
                raise ValueError(f"{what}: {name}: {error}") from None
        found[name] = tuple(listed)
    return found
