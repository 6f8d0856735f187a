"""One training step of every recipe on a GPU made of fake tensors: nothing waits for the device, and memory fits."""

import json
from pathlib import Path

import pytest
from fake_gpus import BENCHMARKS, needs_fake_gpu, run_program

from fairseq_maelm.commands.pretrain import RECIPES
from fairseq_maelm.training.options import load_yaml, names_in

# Launches of forward, loss and backward pass, where the package's own attention counts as one, and of clipping and
# update, with torch 2.13; others take some operations apart otherwise. Those of
# bf16 include autocast's casts of weights and gradients.
LAUNCHES = {
    "base": {"fp16": (691, 218), "bf16": (1055, 12)},
    "base_plus_plus": {"fp16": (728, 218), "bf16": (1078, 12)},
    "large_plus_plus": {"fp16": (1172, 362), "bf16": (1786, 12)},
    "modern_150m": {"fp16": (1410, 150), "bf16": (1697, 12)},
    "modern_32m": {"fp16": (713, 78), "bf16": (846, 12)},
    "modern_17m": {"fp16": (533, 60), "bf16": (624, 12)},
    "tiny": {"fp16": (231, 62), "bf16": (303, 12)},
}
_OF_ANOTHER_TORCH = 1.05


def test_the_guide_states_the_launches() -> None:
    text = (BENCHMARKS.parent / "examples" / "pretraining" / "performance.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    stated = {
        row[0].strip("`"): row[2] for row in rows if row[0].strip("`") in LAUNCHES and len(row) == 6 and "`" in row[0]
    }
    assert len(stated) == 4
    assert stated == {name: " / ".join(f"{launches:,}" for launches, _ in LAUNCHES[name].values()) for name in stated}


@needs_fake_gpu
@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[] if name == "modern_32m" else pytest.mark.exhaustive) for name in LAUNCHES],
)
def test_a_step_waits_for_nothing_and_needs_what_the_recipe_states(recipe: str, tmp_path: Path) -> None:
    assert set(LAUNCHES) == {*names_in(RECIPES)} - {"adapt"}, "the model of adapt is the checkpoint's"
    printed = run_program(BENCHMARKS / "step_without_gpu.py", recipe, "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [step["precision"] for step in found] == ["fp16", "bf16"]
    for step in found:
        # A value that the host asks of the device has none on a fake one, and ends the program.
        assert step["copies"] == [] and step["without_gradient"] == []
        for launches, most in zip(("launches", "update_launches"), LAUNCHES[recipe][step["precision"]]):
            assert 0 < step[launches] <= most * _OF_ANOTHER_TORCH
    assert len(printed.splitlines()) == 4
    content = load_yaml(Path(recipe), RECIPES)
    if content["sequences-per-gpu"] == "auto":
        needed = [max(step[part] for step in found) for part in ("fixed", "sequence")]
        assert content["memory-gb"] == pytest.approx(needed, rel=0.1)
