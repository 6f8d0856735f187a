"""Recipes: YAML files with the options of a fine-tuning task, its search space, and the paper's scores.

A recipe is named by its path, or by the name of one in the package. Its list ``defaults`` names recipes, in the same
folder or in the package, whose content it inherits.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_maelm.training.options import load_yaml, mapping_of, number_if_it_is_one

# Option -> values to try.
Search = dict[str, tuple[Any, ...]]

RECIPES = Path(__file__).with_name("recipes")
_REQUIRED = ("task", "data", "metric", "options", "search")
_OPTIONAL = ("metrics", "setting", "search_large", "paper")
# Every search has these; any other name in it is an option of fairseq-train.
_SEARCHED = ("lr", "batch-size", "epochs", "warm-up")
# Options that the sweep sets in every run.
_RESERVED = (
    "save-dir", "finetune-from-model", "restore-file", "seed", "max-epoch", "max-update", "total-num-update",
    "warmup-updates", "best-checkpoint-metric", "arch", "user-dir", "log-format", "log-file", "no-save", *_SEARCHED,
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The settings of a fine-tuning task.

    Attributes:
        path: the file.
        task: the task's name in tables.
        data: the task's folder, below the folder of all data.
        metric: the validation metric that chooses checkpoint and setting; larger is better.
        metrics: the metrics to report, ``metric`` included.
        options: options of fairseq-train, without leading dashes; True is a flag.
        search: values to try; it has lr, batch-size, epochs (passes over the training data) and warm-up (fraction of
            the updates).
        search_large: the same for large models; None to use ``search``.
        setting: one value for each name in ``search``, for a single run.
        paper: group -> model -> published scores in percent, one for each validation set.
    """

    path: Path
    task: str
    data: str
    metric: str
    metrics: tuple[str, ...]
    options: dict[str, Any]
    search: Search
    search_large: Search | None
    setting: dict[str, Any]
    paper: dict[str, dict[str, tuple[float, ...]]]

    @property
    def subsets(self) -> tuple[str, ...]:
        """The validation sets; the first chooses checkpoint and setting."""
        return tuple(str(self.options.get("valid-subset", "valid")).split(","))


def check_name(name: Any, what: str) -> str:
    """Return a name that can be used in tables and paths; raise a ValueError for any other."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+ -]*", name)):
        raise ValueError(f"{what} {name!r} must be a name of letters, digits, spaces, '.', '+', '-' and '_'")
    return name


def read_recipes(paths: Iterable[Path]) -> list[Recipe]:
    """Read recipes; raise a ValueError for two of the same task."""
    recipes: dict[str, Recipe] = {}
    for path in paths:
        recipe = read_recipe(path)
        if recipe.task in recipes:
            raise ValueError(
                f"two recipes for the task {recipe.task}: {recipes[recipe.task].path} and {path}; give one of them"
            )
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
        return _recipe_of(path, content)
    except ValueError as error:
        raise ValueError(f"the recipe {path}: {error}") from error


def _recipe_of(path: Path, content: Mapping[str, Any]) -> Recipe:
    _check_keys(content)
    metric, metrics = content["metric"], content.get("metrics") or [content["metric"]]
    if not (isinstance(metrics, list) and all(isinstance(name, str) for name in [metric, *metrics])):
        raise ValueError("metric must be a name, and metrics a list of names")
    large, search = content.get("search_large"), _search(mapping_of(content["search"], "search"), "search")
    return Recipe(
        path=path,
        task=check_name(content["task"], "task"),
        data=str(content["data"]),
        metric=metric,
        metrics=tuple(dict.fromkeys([metric, *metrics])),
        options=_options(mapping_of(content["options"], "options")),
        search=search,
        search_large=None if large is None else _search(mapping_of(large, "search_large"), "search_large"),
        setting=_setting(mapping_of(content.get("setting") or {}, "setting"), search),
        paper=_paper(mapping_of(content.get("paper") or {}, "paper")),
    )


def _check_keys(content: Mapping[str, Any]) -> None:
    missing = [key for key in _REQUIRED if key not in content]
    unknown = sorted(set(content) - {*_REQUIRED, *_OPTIONAL})
    if missing or unknown:
        raise ValueError(
            f"missing keys: {', '.join(missing) or 'none'}; unknown keys: {', '.join(unknown) or 'none'}. A recipe has "
            f"{', '.join(_REQUIRED)} and optionally {', '.join(_OPTIONAL)}"
        )


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name.startswith("-") or isinstance(value, dict):
            raise ValueError(f"the option {name} must have no leading dashes, and a value or true")
        if name in _RESERVED:
            raise ValueError(f"the option {name} is set by the sweep or by search: remove it from options")
    missing = [name for name in ("task", "criterion") if name not in options]
    if missing:
        raise ValueError(f"its options lack {' and '.join(missing)}")
    return dict(options)


def _search(search: Mapping[str, Any], what: str) -> Search:
    missing = [name for name in _SEARCHED if name not in search]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    found: Search = {}
    for name, values in search.items():
        listed = [number_if_it_is_one(value) for value in (values if isinstance(values, list) else [values])]
        if not listed or len(set(map(str, listed))) < len(listed):
            raise ValueError(f"{what}: {name} must be a list of different values, not {values}")
        for value in listed:
            _check_value(name, value, what)
        found[name] = tuple(listed)
    return found


def _setting(setting: Mapping[str, Any], search: Search) -> dict[str, Any]:
    """Return one value for each searched option: the recipe's if it is among the searched ones, or else the first."""
    chosen = {name: number_if_it_is_one(value) for name, value in setting.items()}
    for name, value in chosen.items():
        _check_value(name, value, "setting")
    return {name: chosen[name] if chosen.get(name) in values else values[0] for name, values in search.items()}


def _check_value(name: str, value: Any, what: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in ("batch-size", "epochs"):
        right = number and value == int(value) and value >= 1
    elif name == "lr":
        right = number and value > 0
    elif name == "warm-up":
        right = number and 0 <= value < 1
    else:
        right = number or isinstance(value, (str, bool))
    if not right:
        raise ValueError(f"{what}: {value!r} cannot be a value of {name}")


def _paper(paper: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, ...]]]:
    groups: dict[str, dict[str, tuple[float, ...]]] = {}
    for group, rows in paper.items():
        published = {name: _published(value) for name, value in mapping_of(rows, f"paper: {group}").items()}
        groups[group] = {name: scores for name, scores in published.items() if scores}
    return groups


def _published(value: Any) -> tuple[float, ...]:
    """Read scores as the paper prints them: 61.2, 87.2/87.1, or a dash for none."""
    parts = value if isinstance(value, list) else str("-" if value is None else value).split("/")
    numbers = [number_if_it_is_one(part.strip() if isinstance(part, str) else part) for part in parts]
    if numbers[0] == "-":
        return ()
    # "84.5/-" has a score for the first of two sets only; NaN keeps anyone from averaging them.
    numbers = [float("nan") if number == "-" else number for number in numbers]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise ValueError(f"the published score {value!r} is neither a number nor two with a / between them")
    return tuple(float(number) for number in numbers)
