"""Rows of the ablation study through the real commands: it trains, is validated, saved and loaded again."""

import functools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import load_script

from end_to_end.toy import ROOT, TINY_TRAINING, losses, run
from fairseq_maelm import MaelmModel
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.studies.plan import Plan
from fairseq_maelm.training.options import words_of

PLAN = Plan(ROOT / "examples" / "ablations" / "plan.yaml", {})
# Each runs code that the others do not; tests/examples/test_ablations.py builds all rows.
ROWS = ("mlm", "random_replace_kept", "misaligned_positions", "self_cross", "causal_cross", "decoder_512_wide")
ROWS += ("delta_0.5",)
scaled_decoder = load_script(ROOT / "examples" / "study.py").scaled_decoder
# The other mask rate, and BERT's way of masking, go with every row; here with every second one.
BERT = ["--mask-prob", "0.4", "--leave-unmasked-prob", "0.1", "--random-token-prob", "0.1"]
UPDATES = 3

Train = Callable[[str], tuple[Path, str]]


@pytest.fixture(scope="module")
def train(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train a row, once for all tests: its folder, and the output of fairseq-train."""

    @functools.cache
    def train_row(name: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(name)
        masking = BERT if list(PLAN.rows).index(name) % 2 else []
        row = PLAN.rows[name]
        own = {**row.get("options", {}), **scaled_decoder(row, {"arch": "maelm_tiny"})}
        options = [*masking, *words_of(own), "--save-dir", folder]
        return folder, run(["fairseq-train", toy_data, *TINY_TRAINING, *options, "--max-update", UPDATES])

    return train_row


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_row_trains_and_its_encoder_is_usable(name, train, toy_data):
    folder, output = train(name)
    hub = MaelmModel.from_pretrained(str(folder), "checkpoint_last.pt", str(toy_data))
    guessing = math.log2(len(hub.dictionary))
    trained, validated = losses(output), losses(output, "valid")
    assert len(trained) == UPDATES and len(validated) == 1
    assert trained[0] == pytest.approx(guessing, abs=0.3)
    assert all(math.isfinite(loss) and loss < guessing + 0.3 for loss in [*trained, *validated])

    tokens = hub.encode("The sailor takes the rope to the harbour.")
    with torch.no_grad():
        features = hub.extract_features(tokens)
    assert features.shape == (1, len(tokens), SIZES["maelm_tiny"]["encoder_embed_dim"])
    assert features.isfinite().all()
    # The states are of different tokens, not one vector for all.
    assert features[0].std(dim=0).max() > 0.01
