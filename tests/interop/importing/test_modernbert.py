"""ModernBERT and Ettin are imported with local attention and all positions, or refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm import MaelmModel
from fairseq_maelm.interop.importing.run import import_model

from . import sources
from .sources import transformers

NUMBERS = {"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 72}
# The tokens on either side that local attention sees: half of its window.
WINDOW = 16
BASES = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
MASKED = "the <mask> sails"


def rope(**bases: float) -> dict[str, Any]:
    return {name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()}


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder like ModernBERT: special symbols after byte pairs, every third layer global with another base."""
    folder = tmp_path_factory.mktemp("modernbert") / "source"
    tokenizer = sources.byte_pairs(sources.folder_of(folder), [*sources.SPECIAL], ["<mask>"])
    sources.between(tokenizer, "<s>", "</s>")
    sizes = {**NUMBERS, "max_position_embeddings": 40, "local_attention": WINDOW, "rope_parameters": rope(**BASES)}
    settings = {**sizes, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
    return sources.save(folder, "ModernBert", tokenizer, tokenizer.get_vocab_size(), **settings)


@pytest.fixture
def copied(modernbert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(modernbert, tmp_path / "source"))


OLD_NAMES = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 3}
EQUAL = dict.fromkeys(BASES, 160_000.0)
# Changes of the configuration -> rotary bases, window, period of global layers.
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "ModernBERT": ({}, [160_000, 10_000, WINDOW, 3]),
    "written by version 4": (
        {**OLD_NAMES, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0},
        [160_000, 10_000, WINDOW, 3],
    ),
    "defaults of version 4": (OLD_NAMES, [160_000, 10_000, WINDOW, 3]),
    "Ettin": ({"rope_parameters": rope(**EQUAL)}, [160_000, 160_000, WINDOW, 3]),
    "every second layer": (
        {"layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"]},
        [160_000, 10_000, WINDOW, 2],
    ),
    "one global layer": (
        {"layer_types": ["full_attention"] + ["sliding_attention"] * 4},
        [160_000, 10_000, WINDOW, 5],
    ),
    "wide window": ({"local_attention": 200}, [160_000, 10_000, 0, 3]),
    "all global": ({"layer_types": ["full_attention"] * 5}, [160_000, 160_000, 0, 3]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same(case: str, copied: Path, tmp_path: Path) -> None:
    changes, settings = CASES[case]
    folder = sources.edit_config(copied, **changes)
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]
    assert all(each.size > 0.5 for each in imported.agreements)
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    config = hub.config.model
    found = [config.rotary_base, config.local_rotary_base, config.local_attention, config.global_every]
    assert [config.max_positions, *found] == [40, *settings]
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = hub.encode(MASKED)[None]
    with torch.no_grad():
        scores = model(tokens).logits[0, tokens[0] == hub.dictionary.index("<mask>")].softmax(dim=-1)[0]
    best = hub.fill_mask(MASKED, topk=3)[0]
    assert [each.probability for each in best] == pytest.approx(scores.topk(3).values.tolist(), rel=1e-4)


def test_another_window_is_found_out(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window that is two tokens wider, the comparison fails."""
    from fairseq_maelm.interop.importing import huggingface

    honest = huggingface.model_options
    wider = {"local_attention": WINDOW + 2}
    monkeypatch.setattr(huggingface, "model_options", lambda config: {**honest(config), **wider})
    with pytest.raises(ValueError, match="computes something else"):
        import_model(copied, tmp_path / "imported")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"norm_bias": True}, "norm_bias is True, but our encoder has False"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"rope_parameters": rope(full_attention=10.5)}, "rotary bases are .*10.5"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
            "its rotary positions are scaled",
        ),
        ({"layer_types": ["sliding_attention"] * 5}, "all except the first of every so many"),
        ({"norm_eps": 0.5}, "layer_norm_eps is 0.5"),
    ],
)
def test_what_cannot_be_exact_is_refused(changes: dict[str, Any], match: str, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        import_model(sources.edit_config(copied, **changes), tmp_path / "imported")
    assert not (tmp_path / "imported").exists()
