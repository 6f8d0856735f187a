"""The package's recipes: the paper's numbers, options that fairseq-train has, and metrics that the criteria log."""

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from fairseq import options

from fairseq_maelm.finetuning.sentences.glue import TASKS
from fairseq_maelm.finetuning.squad import scoring
from fairseq_maelm.finetuning.squad.task import SquadTaskConfig
from fairseq_maelm.finetuning.tagging.schemes import ENTITY_METRICS
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.launch.recipes import FineTuningRecipe, read_recipe, recipe_names
from fairseq_maelm.models.labels import from_json
from fairseq_maelm.registration import register

NAMES = recipe_names(FineTuningRecipe)
RECIPES: dict[str, FineTuningRecipe] = {name: read_recipe(Path(name), FineTuningRecipe) for name in NAMES}
SMALL = {"CoLA", "RTE", "MRPC", "STS-B"}
# The paper's Table 4, without the learning rates.
TABLE_4: dict[bool, dict[str, Any]] = {
    True: {"batch-size": (16, 32), "epochs": (2, 3, 5, 10), "warm-up": (0.06, 0.1)},
    False: {"batch-size": (32,), "epochs": (2, 3, 5), "warm-up": (0.06,)},
}


def test_there_is_one_for_each_kind_and_each_task_of_glue() -> None:
    others = {"scierc_ner", "sentences", "sentences_multilabel", "sentences_regression", "squad", "squad2"}
    assert set(NAMES) == {*TASKS, *others, "tagging", "tagging_entities", "ud_ewt"}
    assert all(RECIPES[name].task == RECIPES[name].data == name for name in TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_fairseq_has_the_options_and_the_setting_is_whole(name: str) -> None:
    recipe = RECIPES[name]
    register()
    words = ["data", "--arch", "maelm_tiny", *words_of(recipe.options)]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert args.task == recipe.options["task"]
    assert set(recipe.setting) == {"lr", "batch-size", "epochs", "warm-up"}
    assert recipe.metric == recipe.metrics[0]


@pytest.mark.parametrize("name", [*TASKS, "sentences", "sentences_regression"])
def test_metrics_of_sentences_are_logged(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.options["criterion"] == "maelm_sentences"
    task = TASKS.get(name)
    names = ["a", "b", "c"] if name == "sentences" else task.labels if task else None
    assert set(recipe.metrics) <= set(from_json({"labels": names}).metrics)
    if task is None:
        return
    assert recipe.metric == {"CoLA": "mcc", "STS-B": "spearman"}.get(name, "accuracy")
    assert recipe.subsets == tuple(split for split in task.tables if split.startswith("valid"))


@pytest.mark.parametrize("name", TASKS)
def test_the_search_of_glue_is_that_of_table_4(name: str) -> None:
    if name in SMALL:
        rates, large = (2e-5, 3e-5, 4e-5, 5e-5), (7e-6, 1e-5, 2e-5, 3e-5)
    else:
        rates, large = (1e-5, 2e-5, 3e-5, 4e-5), (5e-6, 7e-6, 1e-5, 2e-5)
    assert RECIPES[name].search == {"lr": rates, **TABLE_4[name in SMALL]}
    assert RECIPES[name].search_large == {"lr": large, **TABLE_4[name in SMALL]}


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
def test_the_published_rows_have_the_published_average(group: str, model: str, average: float) -> None:
    scores = [float(np.nanmean(RECIPES[name].paper[group][model])) for name in TASKS]
    assert len(scores) == 8
    assert mean(scores) == pytest.approx(average, abs=0.0501)


@pytest.mark.parametrize(("name", "version"), [("squad", "1.1"), ("squad2", "2.0")])
def test_squad(name: str, version: str) -> None:
    recipe = RECIPES[name]
    assert set(recipe.metrics) <= set(scoring.metric_names(version, np.array([True, version == "1.1"])))
    # Table 5 of the paper, which fine-tunes on 512 tokens; 384 is what its predecessors' scripts have.
    for search, rates in ((recipe.search, (2e-5, 3e-5, 4e-5, 5e-5)), (recipe.search_large, (7e-6, 1e-5, 2e-5, 3e-5))):
        assert search == {"lr": rates, "batch-size": (16, 32), "epochs": (2, 3), "warm-up": (0.06, 0.1)}
    for option in ("max-length", "doc-stride", "max-question-length"):
        assert SquadTaskConfig.__dataclass_fields__[option.replace("-", "_")].default == recipe.options[option]
    assert recipe.options["max-length"] == 512


@pytest.mark.parametrize("name", ["tagging", "tagging_entities", "ud_ewt", "scierc_ner"])
def test_tagging(name: str) -> None:
    metrics = set(RECIPES[name].metrics)
    assert metrics == ({"accuracy"} if name in ("tagging", "ud_ewt") else set(ENTITY_METRICS))
