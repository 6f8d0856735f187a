"""One training step of every recipe on a GPU made of fake tensors: nothing waits for the device, and memory fits."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm.pretrain_command import RECIPES
from fairseq_maelm.train_command import load_yaml, names_in

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None or shutil.which("g++") is None or importlib.util.find_spec("triton") is None,
    reason="fake GPUs need a torch that was built for CPUs, g++ and triton",
)
# Launches, for each layer of encoder and decoder and for all else, of forward, loss and backward pass, where the
# package's own attention counts as one, and of clipping and update. Each change may only lower them.
MOST_LAUNCHES = {"fp16": (44, 130), "bf16": (61, 140)}
MOST_LAUNCHES_OF_AN_UPDATE = {"fp16": (12, 30), "bf16": (0, 20)}


def run_program(*words: Any, folder: Path) -> Any:
    """Run the program in a process of its own, as it replaces parts of torch, and return its numbers."""
    path = os.pathsep.join([str(BENCHMARKS.parent), str(BENCHMARKS)])
    command = [
        sys.executable,
        str(BENCHMARKS / "step_without_gpu.py"),
        *map(str, words),
        "--json",
        folder / "found.json",
    ]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads((folder / "found.json").read_text(encoding="utf-8")), run.stdout


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[] if name in ("base", "small") else pytest.mark.exhaustive)
        for name in names_in(RECIPES)
    ],
)
def test_a_step_waits_for_nothing_and_needs_what_the_recipe_states(recipe: str, tmp_path: Path) -> None:
    found, printed = run_program(recipe, folder=tmp_path)
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


def test_fine_tuning_waits_for_nothing(tmp_path: Path) -> None:
    program = """
import fake_gpu
from fake_gpu.device import plug_in
plug_in()
from fake_gpu.step import take_fine_tuning_step
for arch, changes in (("maelm_tiny", {}), ("maelm_tiny", {"layer": "modern", "positions": "rotary"})):
    step = take_fine_tuning_step(arch, 8, 64, 1000, **changes)
    assert step.copies == [] and step.without_gradient == [] and step.launches > 40, step
"""
    path = os.pathsep.join([str(BENCHMARKS.parent), str(BENCHMARKS)])
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()[-3000:]
