"""The recipes for sweeps name options that fairseq-train has."""

from pathlib import Path

import pytest
import yaml
from fairseq import options

from fairseq_maelm.finetuning.tagging.metrics import ENTITY_METRICS

RECIPES = sorted((Path(__file__).resolve().parents[3] / "examples" / "tagging" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path: Path) -> None:
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(recipe) == {"task", "data", "metric", "metrics", "options", "search"}
    assert set(recipe["search"]) == {"lr", "batch-size", "epochs", "warm-up"}
    assert all(isinstance(value, (int, float)) for values in recipe["search"].values() for value in values)
    assert recipe["metric"] in recipe["metrics"] and set(recipe["metrics"]) <= set(ENTITY_METRICS)
    words = ["data", "--arch", "maelm_tiny"]
    for name, value in recipe["options"].items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert args.task == args.criterion == "maelm_tagging"


def test_there_are_recipes() -> None:
    assert [path.stem for path in RECIPES] == ["scierc_ner", "ud_ewt"]
