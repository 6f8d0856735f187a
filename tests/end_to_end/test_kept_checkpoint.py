"""A checkpoint that an earlier version wrote: it loads everywhere, with the numbers that it had there.

``kept/`` holds six updates of a model of width 16 and the data of its training, 40 generated documents. The expected
numbers are what the version of November 2026 computed from it, before its modules were moved.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import updates
from end_to_end.toy import run
from fairseq_maelm import MaelmModel

KEPT = Path(__file__).resolve().parent / "kept"
CHECKPOINT = KEPT / "checkpoint_last.pt"
SIZES: list[Any] = ["--arch", "maelm_tiny", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 32]
SIZES += ["--max-positions", 48, "--decoder-layers", 2]
TRAINING: list[Any] = ["--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6"]
TRAINING += ["--clip-norm", 2.0, "--lr-scheduler", "polynomial_decay", "--lr", "1e-2", "--warmup-updates", 2]
TRAINING += ["--total-num-update", 20, "--batch-size", 16, "--cpu", "--num-workers", 0, "--log-format", "json"]
TRAINING += ["--log-interval", 1, "--seed", 1, "--no-epoch-checkpoints"]


def loss_of_updates(output: str) -> list[float]:
    return [float(entry["loss"]) for entry in updates(output) if "loss" in entry]


def test_the_hub_gives_the_same_numbers():
    hub = MaelmModel.from_pretrained(str(KEPT), CHECKPOINT.name, str(KEPT / "data"))
    with torch.no_grad():
        features = hub.extract_features(hub.encode("The sailor takes the rope to the harbour."))
    assert features.shape == (1, 23, 16)
    first = torch.tensor([0.243657, -1.650192, -0.996576, -0.310625, -0.760718, 1.336821])
    torch.testing.assert_close(features[0, 1, :6], first, rtol=0, atol=1e-5)
    assert float(features.double().abs().sum()) == pytest.approx(293.985606, abs=1e-3)
    filled = hub.fill_mask("The sailor takes the <mask>.", topk=3)[0]
    assert [each.token for each in filled] == ["the", "afternoon", "es"]
    assert [each.probability for each in filled] == pytest.approx([0.0159788, 0.0144507, 0.0143841], abs=1e-6)


def test_training_goes_on(tmp_path):
    shutil.copy(CHECKPOINT, tmp_path)
    task = ["--task", "maelm", "--criterion", "maelm", "--tokens-per-sample", 48, "--max-update", 8]
    output = run(["fairseq-train", KEPT / "data", *task, *SIZES, *TRAINING, "--save-dir", tmp_path])
    assert loss_of_updates(output)[:2] == pytest.approx([6.676, 6.643], abs=2e-3)
