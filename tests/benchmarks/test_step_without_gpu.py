"""One training step of every recipe on a GPU made of fake tensors: nothing waits for the device, and memory fits."""

import json
from pathlib import Path

import pytest
from fake_gpus import BENCHMARKS, needs_fake_gpu, run_program

from fairseq_maelm.pretrain_command import RECIPES
from fairseq_maelm.train_command import load_yaml, names_in

# Launches, for each layer of encoder and decoder and for all else, of forward, loss and backward pass, where the
# package's own attention counts as one, and of clipping and update. Each change may only lower them.
MOST_LAUNCHES = {"fp16": (44, 130), "bf16": (44, 130)}
MOST_LAUNCHES_OF_AN_UPDATE = {"fp16": (12, 30), "bf16": (0, 20)}


@needs_fake_gpu
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[] if name in ("base", "small") else pytest.mark.exhaustive)
        for name in names_in(RECIPES)
    ],
)
def test_a_step_waits_for_nothing_and_needs_what_the_recipe_states(recipe: str, tmp_path: Path) -> None:
    printed = run_program(BENCHMARKS / "step_without_gpu.py", recipe, "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [step["precision"] for step in found] == ["fp16", "bf16"]
    for step in found:
        # A value that the host asks of the device has none on a fake one, and ends the program.
        assert step["copies"] == [] and step["without_gradient"] == []
        for launches, most in (("launches", MOST_LAUNCHES), ("update_launches", MOST_LAUNCHES_OF_AN_UPDATE)):
            of_a_layer, others = most[step["precision"]]
            assert 0 < step[launches] <= of_a_layer * step["layers"] + others
    assert len(printed.splitlines()) == 4
    content = load_yaml(Path(recipe), RECIPES)
    if content["sequences-per-gpu"] == "auto":
        needed = [max(step[part] for step in found) for part in ("fixed", "sequence")]
        assert content["memory-gb"] == pytest.approx(needed, rel=0.1)
