"""Every row of the ablation study through the real commands: it trains, is validated, saved and loaded again."""

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import load_script

from end_to_end.toy import ROOT, TINY_TRAINING, losses, run, train_log
from fairseq_maelm import MaelmModel
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.studies.plan import Plan
from fairseq_maelm.train_command import words_of

PLAN = Plan(ROOT / "examples" / "ablations" / "plan.yaml", {})
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
@pytest.mark.parametrize("name", PLAN.rows)
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


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "other"), [("self_cross", "causal_cross")])
def test_a_checkpoint_of_another_decoder_attention_is_refused(saved, other, train, toy_data, tmp_path):
    """The parameters of both have the same names and shapes."""
    checkpoint = train(saved)[0] / "checkpoint_last.pt"
    command = ["fairseq-train", toy_data, *TINY_TRAINING, "--decoder-attention", other, "--max-update", UPDATES + 1]
    output = run([*command, "--save-dir", tmp_path / "out", "--restore-file", checkpoint], check=False)
    assert f"the checkpoint was trained with --decoder-attention {saved} and not {other}" in output
    assert "pass the decoder's options as in pretraining" in output
    assert train_log(output) == []
    assert not list((tmp_path / "out").glob("*.pt"))


BAD: dict[str, tuple[list[Any], str]] = {
    "nothing to predict from": (
        ["--decoder-layers", 0, "--masked-input", "reset"],
        r"--decoder-layers 0 cannot predict the masked tokens.* with --masked-input reset: use --masked-input kept",
    ),
    "cross-attention of no decoder": (
        ["--decoder-attention", "cross", "--decoder-layers", 0, "--masked-input", "kept"],
        r"--decoder-attention cross needs a decoder: --decoder-layers is 0",
    ),
    "positions of another width": (
        ["--share-decoder-positions", "--decoder-embed-dim", 64],
        r"--share-decoder-positions needs a decoder as wide as the encoder \(128\), and --decoder-embed-dim is 64",
    ),
    "a fraction of masks that all stay": (
        ["--encoder-mask-fraction", 0.5, "--masked-input", "kept"],
        r"--encoder-mask-fraction .*goes with --masked-input dropped, not with kept",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_exclude_each_other_stop_the_command_at_once(case, toy_data, tmp_path):
    options, message = BAD[case]
    command = ["fairseq-train", toy_data, *TINY_TRAINING, *options, "--save-dir", tmp_path / "out"]
    output = run([*command, "--max-update", 1], check=False)
    assert re.search(rf"^ValueError: .*{message}", output.splitlines()[-1]), output[-3000:]
    assert train_log(output) == []
    assert not list((tmp_path / "out").glob("*.pt"))
