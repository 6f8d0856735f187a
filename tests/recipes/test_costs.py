"""What is stated about the cost of a recipe is counted from the matrix products of its model, and of Muon."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_maelm.launch.recipes import PretrainingRecipe, read_recipe, recipe_names
from fairseq_maelm.models.flops import BatchShape, ModelShape, flops_per_token, muon_flops
from fairseq_maelm.models.maelm import complete_config
from recipes.dry_runs import GUIDES, PRETRAINING

# Symbols of the vocabularies.
VOCABULARY = {"base": 32_768, "base_plus_plus": 64_000, "large_plus_plus": 64_000}
VOCABULARY |= {"modern_17m": 8_192, "modern_32m": 32_768, "modern_150m": 64_000}
# The share of a GPU's half-precision peak that days are estimated with, FLOP/s.
SUSTAINED = {"H100": 0.3 * 989e12, "A100": 0.3 * 312e12}


def costs(name: str, **changes: Any) -> tuple[float, float]:
    """Count the FLOPs of training per original token, without the window of local attention, and of the run."""
    recipe = read_recipe(Path(name), PretrainingRecipe)
    options = {option.replace("-", "_"): value for option, value in recipe.options.items()}
    config = SimpleNamespace(**{**options, **changes, "local_attention": 0})
    complete_config(config)
    rate = options.get("mask_prob", 0.15)
    length, masked = recipe.setting["sequence-length"], (rate + options.get("mask_prob_end", rate)) / 2
    model = ModelShape.from_config(config, VOCABULARY[name])
    batch = BatchShape(1, length, length * (1 - masked if config.decoder_layers else 1), length * masked)
    tokens = recipe.setting["batch-sequences"] * length
    muon = muon_flops(model) / tokens if options["optimizer"] == "muon" else 0.0
    per_token = flops_per_token(model, batch) + muon
    return per_token, per_token * options["max_update"] * tokens


def written(number: float) -> str:
    """Write a number as the recipes do, with two digits or all that are before the point."""
    return f"{number:,.0f}" if number >= 20 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def test_all_recipes_that_state_a_cost_are_counted() -> None:
    assert set(VOCABULARY) == set(recipe_names(PretrainingRecipe)) - {"adapt", "tiny"}


@pytest.mark.parametrize("name", VOCABULARY)
def test_stated_cost_is_the_model_s(name: str) -> None:
    unit, size = ("petaFLOP", 1e15) if name == "modern_17m" else ("exaFLOP", 1e18)
    (token, whole), (_, baseline) = costs(name), costs(name, decoder_layers=0)
    run, days = f"{written(whole / size)} {unit}", [written(whole / peak / 86400) for peak in SUSTAINED.values()]
    lines = (PretrainingRecipe.folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    text = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    assert f"{token / 1e9:.3f} GFLOPs per token" in text and run in text
    if name in ("modern_17m", "modern_32m"):
        days = ["", ""]
    else:
        assert f"{days[0]} days on one H100" in text
    script = PRETRAINING / f"{name}.sh"
    assert not script.exists() or run in script.read_text(encoding="utf-8")
    # The guide's table.
    title = name.replace("_plus_plus", "++")
    page = (GUIDES / "performance.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page if line.startswith(f"| {title} ")]
    expected = [title, f"{token / 1e9:.3f}", written(whole / size), *days, written(baseline / size)]
    assert rows == ([] if name == "modern_17m" else [expected])
