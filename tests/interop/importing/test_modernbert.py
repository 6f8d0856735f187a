"""ModernBERT and Ettin are imported with positions up to the window of local attention, or refused."""

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
CASES: dict[str, tuple[dict[str, Any], int, list[int]]] = {
    "ModernBERT": ({}, WINDOW // 2 + 1, [160_000, 10_000]),
    "written by version 4": (
        {**OLD_NAMES, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0},
        WINDOW // 2 + 1,
        [160_000, 10_000],
    ),
    "defaults of version 4": (OLD_NAMES, WINDOW // 2 + 1, [160_000, 10_000]),
    "Ettin": ({"rope_parameters": rope(**EQUAL)}, WINDOW // 2 + 1, [160_000, 160_000]),
    "other layers, one base": (
        {"rope_parameters": rope(**EQUAL), "layer_types": ["full_attention"] * 4 + ["sliding_attention"]},
        WINDOW // 2 + 1,
        [160_000, 160_000],
    ),
    "wide window": ({"local_attention": 200}, 40, [160_000, 10_000]),
    "all global": ({"layer_types": ["full_attention"] * 5}, 40, [160_000, 160_000]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same_within_the_window(case: str, copied: Path, tmp_path: Path) -> None:
    changes, positions, bases = CASES[case]
    folder = sources.edit_config(copied, **changes)
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]
    assert all(each.size > 0.5 for each in imported.agreements)
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    config = hub.config.model
    assert [config.max_positions, config.rotary_base, config.local_rotary_base] == [positions, *bases]
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = hub.encode(MASKED)[None]
    assert tokens.shape[1] <= WINDOW // 2 + 1
    with torch.no_grad():
        scores = model(tokens).logits[0, tokens[0] == hub.dictionary.index("<mask>")].softmax(dim=-1)[0]
    best = hub.fill_mask(MASKED, topk=3)[0]
    assert [each.probability for each in best] == pytest.approx(scores.topk(3).values.tolist(), rel=1e-4)


def test_beyond_the_window_it_would_not(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one position more, the comparison fails."""
    from fairseq_maelm.interop.importing import huggingface

    honest = huggingface.model_options
    longer = {"max_positions": WINDOW // 2 + 2}
    monkeypatch.setattr(huggingface, "model_options", lambda config: {**honest(config), **longer})
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
        ({"layer_types": ["sliding_attention"] * 5}, "all except the first of every three"),
        ({"norm_eps": 0.5}, "layer_norm_eps is 0.5"),
    ],
)
def test_what_cannot_be_exact_is_refused(changes: dict[str, Any], match: str, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        import_model(sources.edit_config(copied, **changes), tmp_path / "imported")
    assert not (tmp_path / "imported").exists()
