"""The settings of continued pretraining that follow from the checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_maelm.commands import continued

RECIPE: dict[str, Any] = {"sequence-length": 64, "batch-sequences": 8, "passes": 1}
OPTIONS = {"decoder-layers": 2, "decoder-attention": "aligned_cross", "max-update": 20}
OPTIONS |= {"dropout": 0.1, "attention-dropout": 0.1}


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
    found = continued_options(monkeypatch, "mae-lm", given, **encoder)
    assert (found["decoder-layers"], found["decoder-attention"]) == (expected, "aligned_cross")
    assert continued_options(monkeypatch, "mlm", (), **encoder)["decoder-layers"] == 0


def test_modern_layers_are_adapted_without_dropout(monkeypatch):
    chosen = {
        (layer, given): continued_options(monkeypatch, "mae-lm", given, layer=layer, encoder_layers=2)
        for layer in ("post_norm", "modern")
        for given in ((), ("dropout",))
    }
    rates = {case: (found["dropout"], found["attention-dropout"]) for case, found in chosen.items()}
    assert rates == {
        ("post_norm", ()): (0.1, 0.1),
        ("post_norm", ("dropout",)): (0.1, 0.1),
        ("modern", ()): (0, 0),
        ("modern", ("dropout",)): (0.1, 0),
    }


def continued_options(monkeypatch, objective, given, **encoder):
    sizes = {"layer": "post_norm", "local_attention": 0, "global_every": 3, "max_positions": 64}
    model = SimpleNamespace(**{**sizes, **encoder})
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
    return continued.continue_from(recipe, given, Path("base.pt"), [Path("data")], objective, None)["options"]


@pytest.mark.parametrize("layers", [{}, {"decoder-layers": None}, {"decoder-layers": "two"}], ids=str)
def test_layers_that_are_no_number_are_left_to_fairseq_train(layers: dict[str, Any]) -> None:
    """A recipe without them, ``--set decoder-layers=none``, and a value that fairseq-train refuses in one line."""
    options = {"decoder-attention": "aligned_cross", **layers}
    assert continued._prediction(SimpleNamespace(has_decoder=False), "mae-lm", options) == {}
