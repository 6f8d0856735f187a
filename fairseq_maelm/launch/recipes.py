"""Recipes: YAML files from which commands make the options of a training.

All recipes have two sections. ``options`` are options of fairseq-train, as they are; from the values in ``setting``
further options are computed, in ``launch.pretraining`` and ``launch.finetuning``. A recipe of fine-tuning also names
the task, its metrics, the values that a sweep searches, and published scores.

A recipe is given by its path or, for recipes in the package, by its name. It inherits from the recipes in its list
``defaults``, which are looked up in its own folder and in the package.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_maelm.launch.command_line import number_if_it_is_one, spelled
from fairseq_maelm.options import USER_DIR, did_you_mean, number

# Option -> values to try.
Search = dict[str, tuple[Any, ...]]

# The settings of a pretraining: the size of a batch; passes over the data; memory in GB of a model and of a sequence.
SIZES = ("batch-sequences", "sequence-length", "sequences-per-gpu")
PRETRAINING_SETTINGS = (*SIZES, "passes", "memory-gb")
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
    """What all recipes have, with types that OmegaConf checks."""

    folder: ClassVar[Path]  # the recipes of the package
    settings: ClassVar[Iterable[str]]  # names that may stand in ``setting``

    options: dict[str, Any] = MISSING  # of fairseq-train, without leading dashes; True is a flag
    setting: dict[str, Any] = field(default_factory=dict)  # values from which options of fairseq-train are computed
    path: str = ""  # of the file, or the name of a recipe of the package

    def check(self) -> None:
        """Raise a ValueError if a value is wrong."""
        for name in self.setting:
            if name not in self.settings:
                raise ValueError(f"there is no setting {name}{did_you_mean(name, self.settings)}")


class PretrainingRecipe(Recipe):
    """A recipe of ``maelm pretrain``."""

    folder = USER_DIR / "recipes" / "pretraining"
    settings = PRETRAINING_SETTINGS


@dataclass
class FineTuningRecipe(Recipe):
    """A recipe of ``maelm finetune`` and ``maelm sweep``, whose ``setting`` has one value for each name in ``search``.

    ``metric`` chooses the checkpoint and the setting: larger is better, except for the loss, which can choose
    checkpoints only. ``search`` must contain lr, batch-size, epochs (passes over the training data) and warm-up
    (fraction of the updates). Because of ``min_updates``, few examples are passed more often, in smaller batches.
    """

    folder = USER_DIR / "recipes" / "finetuning"
    settings = tuple(SEARCHED)

    task: str = MISSING  # name in tables
    data: str = MISSING  # the task's folder, relative to the folder of all data
    metric: str = MISSING  # of the validation sets
    metrics: list[str] = field(default_factory=list)  # to report, ``metric`` included
    search: dict[str, Any] = MISSING  # option -> values to try
    search_large: dict[str, Any] | None = None  # the same for large models; None to use ``search``
    paper: dict[str, Any] = field(default_factory=dict)  # group -> model -> published percent on each set, or NaN
    min_updates: int = 0  # fewest of a single run; 0 for the passes and batches of ``setting``

    @property
    def subsets(self) -> tuple[str, ...]:
        """The validation sets; the checkpoint and the setting are chosen on the first."""
        return tuple(str(self.options.get("valid-subset", "valid")).split(","))

    def check(self) -> None:
        """Convert the values; raise a ValueError if one is wrong."""
        check_name(self.task, "task")
        for name in self.options:
            if name in RESERVED:
                raise ValueError(
                    f"{name} is set by the sweep or by the recipe's search: remove it from the recipe's options"
                )
        self.metrics = list(dict.fromkeys([self.metric, *self.metrics]))
        self.search = _search(self.search, "search")
        if self.search_large is not None:
            self.search_large = _search(self.search_large, "search_large")
        # The recipe's value if it is among the searched ones, or else the first.
        chosen = {name: number_if_it_is_one(value) for name, value in self.setting.items()}
        self.setting = {
            name: chosen[name] if chosen.get(name) in values else values[0] for name, values in self.search.items()
        }
        self.paper = {
            group: {model: _scores(scores) for model, scores in rows.items()} for group, rows in self.paper.items()
        }


_Kind = TypeVar("_Kind", bound=Recipe)


def check_name(name: Any, what: str) -> str:
    """Return the name if it is valid in tables and paths, otherwise raise ValueError."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+ -]*", name)):
        raise ValueError(f"{what} {name!r} must consist of letters, digits, spaces, '.', '+', '-' and '_'")
    return name


def recipe_names(kind: type[Recipe]) -> list[str]:
    """Return the names of the package's recipes, except those with a leading underscore, which are bases of others."""
    return sorted(path.stem for path in kind.folder.glob("[!_]*.yaml"))


def recipe_type(kind: type[Recipe]) -> Callable[[str], Path]:
    """Return a function that converts an option's value, a path or the name of a recipe of the package, to a path."""

    def convert(text: str) -> Path:
        try:
            _recipe_file(Path(text), kind)
        except FileNotFoundError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return Path(text)

    return convert


def read_recipe(path: Path, kind: type[_Kind]) -> _Kind:
    """Read a recipe from a file, or from the package by its name."""
    content = _merged(path, kind)
    try:
        typed: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(kind), content))
        if missing := [name for name, value in typed.items() if value == MISSING]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        recipe = kind(**{**typed, "path": str(path)})
        recipe.check()
        return recipe
    except (ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"the recipe {path}: {' '.join(str(error).split())}") from error


def read_recipes(paths: Iterable[Path]) -> list[FineTuningRecipe]:
    """Read recipes for a sweep; raise ValueError if two recipes have the same task, or the loss is their metric."""
    recipes: dict[str, FineTuningRecipe] = {}
    for path in paths:
        recipe = read_recipe(path, FineTuningRecipe)
        if recipe.task in recipes:
            raise ValueError(
                f"two recipes for the task {recipe.task}: {recipes[recipe.task].path} and {path}; give one of them"
            )
        if recipe.metric == "loss":
            raise ValueError(f"the recipe {path}: a sweep needs a metric for which higher is better, not the loss")
        recipes[recipe.task] = recipe
    return list(recipes.values())


def _recipe_file(path: Path, kind: type[Recipe]) -> Path:
    file = path if path.is_file() else kind.folder / f"{path}.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"there is no recipe {path}: give a file, or one of {', '.join(recipe_names(kind))}")
    return file


def _merged(path: Path, kind: type[Recipe], within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe, given by path or name, merged with its ``defaults``; ``within`` are the files that led to it."""
    file = _recipe_file(path, kind)
    if file in within:
        raise ValueError(f"the recipe {path} is among its own defaults: remove it there")
    try:
        content = _content_of(file, kind)
        names = content.pop("defaults", [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("defaults must be a list of recipe names")
        neighbors = [(file.parent / f"{name}.yaml", Path(name)) for name in names]
        files = (*within, file)
        bases = [_merged(near if near.is_file() and near != file else name, kind, files) for near, name in neighbors]
        merged: Any = OmegaConf.to_container(OmegaConf.merge(*bases, content))
        return merged
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"the recipe {path}: {error}") from error


def _content_of(file: Path, kind: type[Recipe]) -> dict[str, Any]:
    """Read a file that has fields of this kind of recipe only."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not (isinstance(content, dict) and all(isinstance(name, str) for name in content)):
        raise ValueError("its content must be a mapping of names to values")
    known = ["defaults", *(each.name for each in fields(kind) if each.name != "path")]
    if settings := [name for name in content if name in kind.settings]:
        raise ValueError(f"move {', '.join(settings)} below `setting:`, next to `options:`")
    if unknown := [name for name in content if name not in known]:
        raise ValueError(f"there is no field {unknown[0]}{did_you_mean(unknown[0], known)}")
    return content


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
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"{what}: {name}: {error}") from None
        found[name] = tuple(listed)
    return found


def _scores(scores: Any) -> tuple[float, ...]:
    return tuple(map(float, scores if isinstance(scores, list) else [scores]))
