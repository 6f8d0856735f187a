"""The settings of continued pretraining that follow from the checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_maelm.commands import continued

RECIPE: dict[str, Any] = {"sequence-length": 64, "batch-sequences": 8, "passes": 1}
OPTIONS = {"decoder-layers": 2, "decoder-attention": "aligned_cross", "max-update": 20}


@pytest.mark.parametrize(
    ("encoder", "given", "expected"),
    [
        ({"encoder_layers": 12}, (), 2),
        ({"encoder_layers": 1}, (), 1),
        ({"encoder_layers": 3, "local_attention": 8}, (), 1),
        ({"encoder_layers": 4, "local_attention": 8}, (), 2),
        ({"encoder_layers": 1}, ("decoder-layers",), 2),
    ],
    ids=str,
)
def test_a_new_decoder_has_no_more_layers_than_it_can_copy(encoder, given, expected, monkeypatch):
    model = SimpleNamespace(**{"local_attention": 0, "global_every": 3, "max_positions": 64, **encoder})
    checkpoint = SimpleNamespace(
        path=Path("base.pt"),
        predicts_masked_tokens=True,
        has_decoder=False,
        heads={},
        vocabulary=1,
        config=SimpleNamespace(model=model),
    )
    monkeypatch.setattr(continued, "read_checkpoint", lambda path: checkpoint)
    monkeypatch.setattr(continued, "load_dictionary", lambda folder: None)
    monkeypatch.setattr(continued, "dictionary_fingerprint", lambda dictionary: 1)
    recipe = {**RECIPE, "options": OPTIONS}
    arguments = (given, Path("base.pt"), [Path("data")])
    found = continued.continue_from(recipe, *arguments, "mae-lm", None)["options"]
    assert (found["decoder-layers"], found["decoder-attention"]) == (expected, "aligned_cross")
    mlm = continued.continue_from(recipe, (), *arguments[1:], "mlm", None)["options"]
    assert mlm["decoder-layers"] == 0


@pytest.mark.parametrize("layers", [{}, {"decoder-layers": None}, {"decoder-layers": "two"}], ids=str)
def test_layers_that_are_no_number_are_left_to_fairseq_train(layers: dict[str, Any]) -> None:
    """A recipe without them, ``--set decoder-layers=none``, and a value that fairseq-train refuses in one line."""
    options = {"decoder-attention": "aligned_cross", **layers}
    assert continued._prediction(SimpleNamespace(has_decoder=False), "mae-lm", options) == {}
