"""The recipes of GLUE: every task has one, its options fit the task, and its numbers are the paper's."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.finetuning.sentences.criterion import metric_names

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "glue"
PATHS = sorted((FOLDER / "recipes").glob("*.yaml"))
RECIPES: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PATHS}
SMALL = {"CoLA", "RTE", "MRPC", "STS-B"}


def test_every_task_has_a_recipe():
    assert RECIPES.keys() == TASKS.keys() and len(PATHS) == 8
    assert all(recipe["task"] == recipe["data"] == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", TASKS)
def test_options_fit_the_task(name):
    recipe, task = RECIPES[name], TASKS[name]
    options = recipe["options"]
    assert options["criterion"] == "maelm_sentence_prediction"
    assert options["num-classes"] == (1 if task.labels is None else len(task.labels))
    assert options.get("regression-target", False) is (task.labels is None)
    positive = task.positive if task.positive is None or task.labels is None else task.labels.index(task.positive)
    known = metric_names(task.labels is None, positive)
    assert set(recipe["metrics"]) <= set(known) and recipe["metric"] == recipe["metrics"][0]
    assert recipe["metric"] == {"CoLA": "mcc", "STS-B": "spearman"}.get(name, "accuracy")
    dev_sets = [split for split in task.tables if split.startswith("valid")]
    assert options.get("valid-subset", "valid").split(",") == dev_sets


@pytest.mark.parametrize("name", TASKS)
def test_the_search_is_that_of_table_4(name):
    if name in SMALL:
        rates, large = [2e-5, 3e-5, 4e-5, 5e-5], [7e-6, 1e-5, 2e-5, 3e-5]
        rest: dict[str, Any] = {"batch-size": [16, 32], "epochs": [2, 3, 5, 10], "warm-up": [0.06, 0.1]}
    else:
        rates, large = [1e-5, 2e-5, 3e-5, 4e-5], [5e-6, 7e-6, 1e-5, 2e-5]
        rest = {"batch-size": [32], "epochs": [2, 3, 5], "warm-up": [0.06]}
    assert RECIPES[name]["search"] == {"lr": rates, **rest}
    assert RECIPES[name]["search_large"] == {"lr": large, **rest}


@pytest.mark.parametrize(
    ("group", "model", "average"),
    [
        ("base", "RoBERTa (Ours)", 85.2),
        ("base", "MAE-LM", 86.1),
        ("base++", "RoBERTa", 86.4),
        ("base++", "MAE-LM", 87.8),
        ("large++", "RoBERTa", 88.9),
        ("large++", "MAE-LM", 89.3),
    ],
)
def test_the_published_rows_have_the_published_average(group, model, average):
    rows = [str(recipe["paper"][group][model]).split("/") for recipe in RECIPES.values()]
    scores = [mean(float(score) for score in row if score != "-") for row in rows]
    assert len(scores) == 8
    assert mean(scores) == pytest.approx(average, abs=0.0501)


def test_words_for_the_shell():
    sys.path.insert(0, str(FOLDER))
    try:
        import recipe_options
    finally:
        sys.path.remove(str(FOLDER))
    words = recipe_options.words(recipe_options.open_recipe(FOLDER / "recipes" / "STS-B.yaml"))
    assert words[words.index("--best-checkpoint-metric") + 1] == "spearman"
    assert "--maximize-best-checkpoint-metric" in words
    flag = words.index("--regression-target")
    assert words[flag + 1].startswith("--"), "a flag has no value"
    with pytest.raises(SystemExit, match="there is no recipe .*SNLI.yaml: the tasks are CoLA, MNLI, MRPC"):
        recipe_options.open_recipe(FOLDER / "recipes" / "SNLI.yaml")
