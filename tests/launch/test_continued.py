"""The settings of continued pretraining that follow from the checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairseq_maelm.launch import continued
from fairseq_maelm.launch.recipes import PretrainingRecipe

SETTING: dict[str, Any] = {"sequence-length": 64, "batch-sequences": 8, "passes": 3}
OPTIONS = {"decoder-attention": "shared", "max-update": 20}
OPTIONS |= {"dropout": 0.1, "attention-dropout": 0.1}


def test_the_objective_decides_how_an_encoder_without_a_decoder_predicts(monkeypatch):
    found = continued_options(monkeypatch, "mae-lm", (), encoder_layers=12)
    assert found["decoder-attention"] == "shared" and "decoder-layers" not in found
    found = continued_options(monkeypatch, "mlm", (), encoder_layers=12)
    assert (found["decoder-layers"], found["decoder-attention"]) == (0, None)


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


def test_general_text_leaves_the_number_of_passes(monkeypatch):
    """With a quarter of general text, three passes over the text of the domain take a third more updates."""
    monkeypatch.setattr(continued, "read_index", lambda path: (np.full(30, 512), None))
    rates = {name: OPTIONS[name] for name in OPTIONS if name != "max-update"}
    chosen = [(None, rates), ("general", rates), ("general", {**rates, "general-ratio": 0.5})]
    found = [
        continued_options(monkeypatch, "mae-lm", (), general, options, encoder_layers=2) for general, options in chosen
    ]
    assert [each["max-update"] for each in found] == [90, 120, 180]
    # Short runs are not validated more often.
    assert {each["validate-interval-updates"] for each in found} == {10}


def test_a_new_head_begins_with_frequencies_and_effects_are_told(monkeypatch):
    kinds = {"predicts_masked_tokens": False, "is_sentence_encoder": True, "heads": {"topic": [3, 8]}}
    found = continued_options(monkeypatch, "mae-lm", (), encoder_layers=2, checkpoint=kinds)
    assert found["initial-output-bias"] == "frequencies"
    assert "initial-output-bias" not in continued_options(monkeypatch, "mae-lm", (), encoder_layers=2)
    effects = continued.effects_of_pretraining(SimpleNamespace(**kinds))
    parts = ("topic is dropped", "sentence embeddings worse", "no LM head")
    assert len(effects) == 3 and all(part in effect for part, effect in zip(parts, effects, strict=True))


def continued_options(monkeypatch, objective, given, general=None, options=OPTIONS, checkpoint=None, **encoder):
    sizes = {"layer": "post_norm", "local_attention": 0, "global_every": 3, "max_positions": 64}
    model = SimpleNamespace(**{**sizes, **encoder})
    kind = {"predicts_masked_tokens": True, "is_sentence_encoder": False, "heads": {}, **(checkpoint or {})}
    config = SimpleNamespace(model=model)
    read = SimpleNamespace(path=Path("base.pt"), has_decoder=False, vocabulary=1, config=config, **kind)
    monkeypatch.setattr(continued, "load_dictionary", lambda folder: None)
    monkeypatch.setattr(continued, "dictionary_fingerprint", lambda dictionary: 1)
    recipe = PretrainingRecipe(options, SETTING)
    return continued.continue_from(recipe, given, read, [Path("data")], objective, general).options
