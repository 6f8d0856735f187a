"""What is stated about the cost of the modern recipes is counted from the model's matrix products, and Muon's."""

from types import SimpleNamespace
from typing import Any

import pytest
from training_step.flops import BatchShape, ModelShape, flops_per_token, muon_flops

from fairseq_maelm.commands.pretrain import RECIPES
from fairseq_maelm.models.maelm import complete_config
from fairseq_maelm.training.options import load_yaml, names_in
from recipes.dry_runs import PRETRAINING

# Symbols of their vocabularies, and the unit of the operations of the whole run.
VOCABULARY = {"modern_17m": (8_192, "petaFLOP"), "modern_32m": (32_768, "exaFLOP"), "modern_150m": (64_000, "exaFLOP")}
UNITS = {"petaFLOP": 1e15, "exaFLOP": 1e18}
# The share of a GPU's half-precision peak that days are estimated with, FLOP/s.
SUSTAINED = {"H100": 0.3 * 989e12, "A100": 0.3 * 312e12}


def flops_of_a_token(name: str, **changes: Any) -> float:
    """Count the operations of training per original token, without the window of local attention."""
    recipe = load_yaml(RECIPES / f"{name}.yaml", RECIPES)
    options = {option.replace("-", "_"): value for option, value in recipe["options"].items()}
    config = SimpleNamespace(**{**options, **changes, "local_attention": 0})
    complete_config(config)
    length, masked = recipe["sequence-length"], (options["mask_prob"] + options["mask_prob_end"]) / 2
    model = ModelShape.from_config(config, VOCABULARY[name][0])
    batch = BatchShape(1, length, length * (1 - masked if config.decoder_layers else 1), length * masked)
    return flops_per_token(model, batch) + muon_flops(model) / (recipe["batch-sequences"] * length)


def flops_of_the_run(name: str, **changes: Any) -> float:
    """Count the operations of all tokens."""
    recipe = load_yaml(RECIPES / f"{name}.yaml", RECIPES)
    tokens = recipe["options"]["max-update"] * recipe["batch-sequences"] * recipe["sequence-length"]
    return flops_of_a_token(name, **changes) * float(tokens)


def test_all_modern_recipes_are_counted() -> None:
    assert set(VOCABULARY) == {name for name in names_in(RECIPES) if name.startswith("modern")}


@pytest.mark.parametrize("name", VOCABULARY)
def test_stated_cost_is_the_model_s(name: str) -> None:
    token, (_, unit) = f"{flops_of_a_token(name) / 1e9:.3f}", VOCABULARY[name]
    run, baseline = (f"{flops_of_the_run(name, **mlm) / UNITS[unit]:.2g}" for mlm in ({}, {"decoder_layers": 0}))
    days = {gpu: f"{flops_of_the_run(name) / peak / 86400:.1f}" for gpu, peak in SUSTAINED.items()}
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    assert f"{token} GFLOP a token" in text and f"{run} {unit}" in text
    script = PRETRAINING / f"{name}.sh"
    if script.exists():
        assert f"{run} {unit}" in script.read_text(encoding="utf-8")
    if name == "modern_150m":
        assert f"{days['H100']} days of one H100" in text
        assert f"{days['H100']} days of one H100" in script.read_text(encoding="utf-8")
    lines = (PRETRAINING / "performance.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(f"| {name} ")]
    for row in rows:
        estimated = list(days.values()) if name == "modern_150m" else ["", ""]
        assert row == [name, token, run, *estimated, baseline]
    assert len(rows) == (name != "modern_17m")
