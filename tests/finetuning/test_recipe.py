"""Recipes: their content, and the errors of bad ones."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_maelm.finetuning.recipe import read_recipe, read_recipes

RECIPE: dict[str, Any] = {
    "task": "CoLA",
    "data": "cola",
    "metric": "mcc",
    "metrics": ["accuracy"],
    "options": {"task": "sentence_prediction", "criterion": "sentence_prediction", "num-classes": 2},
    "search": {"lr": ["2e-5", 3.0e-5], "batch-size": [16], "epochs": 3, "warm-up": [0, 0.06]},
    "paper": {"base": {"MAE-LM": 63.1, "ALBERT": "-", "BERT": None}},
}


def write(path: Path, **changes: Any) -> Path:
    """Write the recipe with changes; a value of None removes its key."""
    content = {name: value for name, value in {**RECIPE, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_what_a_recipe_holds(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path / "cola.yaml"))
    assert (recipe.task, recipe.data, recipe.metric) == ("CoLA", "cola", "mcc")
    assert recipe.metrics == ("mcc", "accuracy")
    assert recipe.subsets == ("valid",)
    assert recipe.search == {"lr": (2e-5, 3e-5), "batch-size": (16,), "epochs": (3,), "warm-up": (0, 0.06)}
    assert recipe.search_large is None
    assert recipe.paper == {"base": {"MAE-LM": (63.1,)}}


def test_scores_of_two_validation_sets(tmp_path: Path) -> None:
    rows = {"MAE-LM": "87.2/87.1", "RoBERTa": [85.9, 85.8], "BERT": "84.5/-"}
    options = {**RECIPE["options"], "valid-subset": "valid,valid1"}
    recipe = read_recipe(write(tmp_path / "mnli.yaml", paper={"base": rows}, options=options))
    assert recipe.subsets == ("valid", "valid1")
    paper = recipe.paper["base"]
    assert (paper["MAE-LM"], paper["RoBERTa"]) == ((87.2, 87.1), (85.9, 85.8))
    assert paper["BERT"][0] == 84.5 and math.isnan(paper["BERT"][1])


def changed(place: str, value: Any) -> dict[str, Any]:
    """The recipe with one value in one of its tables changed."""
    table, name = place.split(".")
    content = copy.deepcopy(RECIPE)
    content[table][name] = value
    return content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": None}, "missing keys: metric"),
        ({"epochs": 3}, "unknown keys: epochs"),
        ({"task": "../x"}, "task '../x' must be a name"),
        ({"metrics": "accuracy"}, "metrics a list"),
        ({"options": {"task": "sentence_prediction"}}, "options lack criterion"),
        ({"options": ["--cpu"]}, "options must be a mapping"),
        ({"options": {"--x": 1}}, "must have no leading dashes"),
        (changed("options.seed", 1), "seed is set by the sweep"),
        (changed("options.lr", 1), "lr is set by the sweep"),
        (changed("search.lr", []), "lr must be a list of different values"),
        (changed("search.lr", [1e-5, "1e-5"]), "lr must be a list of different values"),
        (changed("search.lr", ["fast"]), "'fast' cannot be a value of lr"),
        (changed("search.lr", [0]), "0 cannot be a value of lr"),
        (changed("search.epochs", [2.5]), "2.5 cannot be a value of epochs"),
        (changed("search.warm-up", [6]), "6 cannot be a value of warm-up"),
        ({"search": {"lr": [1e-5]}}, "search lacks batch-size, epochs, warm-up"),
        ({"search_large": {"lr": [1e-5]}}, "search_large lacks"),
        ({"paper": {"base": {"MAE-LM": "good"}}}, "the published score 'good' is neither a number"),
    ],
)
def test_bad_recipes_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.yaml", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read_recipe(path)
    assert str(path) in str(caught.value)


def test_what_is_no_recipe_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recipe"):
        read_recipe(tmp_path / "missing.yaml")
    for text in ("[1, 2", "- a\n- b\n", "\x00"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match="bad.yaml"):
            read_recipe(tmp_path / "bad.yaml")


def test_two_recipes_of_one_task(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two recipes for the task CoLA"):
        read_recipes([write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml")])
    assert len(read_recipes([write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml", task="RTE")])) == 2
