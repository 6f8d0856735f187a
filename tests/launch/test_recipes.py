"""Recipes that users write, of both kinds: their content, what they inherit, and the errors of bad ones."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_maelm.launch.recipes import FineTuningRecipe, PretrainingRecipe, read_recipe, read_recipes

RECIPE: dict[str, Any] = {
    "task": "CoLA",
    "data": "cola",
    "metric": "mcc",
    "metrics": ["accuracy"],
    "options": {"task": "sentence_prediction", "criterion": "sentence_prediction", "valid-subset": "valid,valid1"},
    "search": {"lr": ["2e-5", 3.0e-5], "batch-size": [16], "epochs": 3, "warm-up": [0, 0.06]},
    "paper": {"base": {"MAE-LM": 63.1, "RoBERTa": [85.9, 85.8], "BERT": [84.5, math.nan]}},
}


def write(path: Path, **changes: Any) -> Path:
    """Write the recipe with changes; a value of None removes its key, and "search.lr" is one in a table."""
    content = {name: dict(value) if isinstance(value, dict) else value for name, value in RECIPE.items()}
    for name, value in changes.items():
        table, _, key = name.partition(".")
        (content[table] if key else content)[key or table] = value
    path.write_text(yaml.safe_dump({name: value for name, value in content.items() if value is not None}))
    return path


def test_what_a_recipe_holds(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path / "cola.yaml"), FineTuningRecipe)
    assert (recipe.task, recipe.data, recipe.metric, recipe.metrics) == ("CoLA", "cola", "mcc", ["mcc", "accuracy"])
    assert recipe.subsets == ("valid", "valid1")
    assert recipe.search == {"lr": (2e-5, 3e-5), "batch-size": (16,), "epochs": (3,), "warm-up": (0, 0.06)}
    assert recipe.search_large is None
    paper = recipe.paper["base"]
    assert (paper["MAE-LM"], paper["RoBERTa"], paper["BERT"][0]) == ((63.1,), (85.9, 85.8), 84.5)
    assert math.isnan(paper["BERT"][1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": None}, "it lacks metric"),
        ({"epochs": 3}, "move epochs below `setting:`"),
        ({"tasks": "CoLA"}, "there is no field tasks; did you mean task?"),
        ({"task": "../x"}, "task '../x' must consist of letters"),
        ({"options.seed": 1}, "seed is set by the sweep or by the recipe's search"),
        ({"search.lr": []}, "lr must be a list of different values"),
        ({"search.lr": [1e-5, "1e-5"]}, "lr must be a list of different values"),
        ({"search.lr": ["fast"]}, "lr: 'fast' is not a number"),
        ({"search.epochs": [2.5]}, "epochs: '2.5' is not an integer"),
        ({"search.warm-up": [6]}, "warm-up: must be at least 0 and below 1, not 6"),
        ({"search_large": {"lr": [1e-5]}}, "search_large lacks batch-size, epochs, warm-up"),
        ({"defaults": "RTE"}, "must be a list"),
    ],
)
def test_bad_recipes_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.yaml", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read_recipe(path, FineTuningRecipe)
    assert str(path) in str(caught.value)


def test_a_recipe_builds_on_others(tmp_path: Path) -> None:
    rte = read_recipe(Path("RTE"), FineTuningRecipe)
    (tmp_path / "own.yaml").write_text("defaults: [RTE]\ntask: mine\noptions: {dropout: 0.2}\nsearch: {lr: [1.0e-3]}\n")
    recipe = read_recipe(tmp_path / "own.yaml", FineTuningRecipe)
    assert recipe.options == {**rte.options, "dropout": 0.2}
    assert recipe.search == {**rte.search, "lr": (1e-3,)}
    assert (recipe.task, recipe.data, recipe.setting) == ("mine", "RTE", {**rte.setting, "lr": 1e-3})
    (tmp_path / "RTE.yaml").write_text("defaults: [RTE]\ndata: other\n")
    assert read_recipe(tmp_path / "RTE.yaml", FineTuningRecipe).data == "other", (
        "a recipe that names itself inherits from the package's"
    )
    with pytest.raises(FileNotFoundError, match="there is no recipe nope: give"):
        read_recipe(write(tmp_path / "bad.yaml", defaults=["nope"]), FineTuningRecipe)
    with pytest.raises(ValueError, match="two recipes for the task CoLA"):
        read_recipes([write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml")])
    with pytest.raises(ValueError, match="c.yaml: a sweep needs a metric for which higher is better"):
        read_recipes([write(tmp_path / "c.yaml", metric="loss")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("batch-sequences: 8\nsequence-length: 64\n", "move batch-sequences, sequence-length below `setting:`"),
        ("search: {lr: [1]}\n", "there is no field search"),
        ("setting: {batch-sequence: 8}\n", "there is no setting batch-sequence; did you mean batch-sequences?"),
    ],
)
def test_bad_recipes_of_pretraining_are_refused(content: str, message: str, tmp_path: Path) -> None:
    """In 0.2 the settings stood beside the options."""
    (tmp_path / "own.yaml").write_text(f"defaults: [base]\n{content}")
    with pytest.raises(ValueError, match=f"own.yaml: {re.escape(message)}"):
        read_recipe(tmp_path / "own.yaml", PretrainingRecipe)


def test_a_recipe_among_its_own_defaults_is_refused(tmp_path: Path) -> None:
    for name, base in (("one", "two"), ("two", "one")):
        (tmp_path / f"{name}.yaml").write_text(f"defaults: [{base}]\n")
    with pytest.raises(ValueError, match="the recipe .*one.yaml is among its own defaults"):
        read_recipe(tmp_path / "one.yaml", PretrainingRecipe)
    # A file with the name of one of ours stands on that one.
    (tmp_path / "tiny.yaml").write_text("defaults: [tiny]\nsetting: {passes: 7}\n")
    recipe, tiny = (read_recipe(path, PretrainingRecipe) for path in (tmp_path / "tiny.yaml", Path("tiny")))
    assert (recipe.options, recipe.setting) == (tiny.options, {**tiny.setting, "passes": 7})
