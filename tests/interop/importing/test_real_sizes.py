"""Models of published sizes, with random weights and small vocabularies, go in and out exactly."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm import hf
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.interop import compare_outputs
from fairseq_maelm.interop.compare_outputs import comparison_batches
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing import importer
from fairseq_maelm.interop.importing.importer import import_model

from . import sources
from .test_families import load_file

logger = logging.getLogger(__name__)

BASE = {"hidden_size": 768, "num_attention_heads": 12, "scale": 0.04}
OF_BERT = {**BASE, "num_hidden_layers": 12, "intermediate_size": 3072}
OF_MODERNBERT = {**BASE, "num_hidden_layers": 22, "intermediate_size": 1152, "max_position_embeddings": 8192}
SIZES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert-base": (sources.bert, {**OF_BERT, "max_position_embeddings": 512}),
    "roberta-base": (sources.roberta_folder, {**OF_BERT, "max_position_embeddings": 514}),
    "xlm-roberta-base": (sources.xlm_roberta, {**OF_BERT, "max_position_embeddings": 514}),
    "ModernBERT-base": (sources.modernbert_folder, {**OF_MODERNBERT, "local_attention": 128}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SIZES)
def test_states_and_scores_agree_and_weights_come_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 16, 128 and 512 tokens, each alone and together with padding."""
    monkeypatch.setattr(compare_outputs, "LENGTHS", (16, 128, 512))
    make, sizes = SIZES[name]
    folder = make(tmp_path / "source", **sizes)
    imported = import_model(folder, tmp_path / "imported")
    assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]
    for each in imported.agreements:
        logger.info("%s: %s", name, each.describe())
        assert each.difference <= 1e-5 * each.size and each.size > 0.5
    export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "folder", ExportSettings())
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "folder"))
    assert before.keys() == after.keys() and all(torch.equal(weight, after[key]) for key, weight in before.items())


@pytest.mark.exhaustive
def test_long_sequences_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ModernBERT-base at 2,048 and 8,192 tokens, in one batch with padding.

    transformers computes by torch's fused attention, because plain attention would take 6 GB for each layer.
    """
    checked = hf._checked_config

    def fused(*arguments: Any, **options: Any) -> Any:
        config = checked(*arguments, **options)
        config._attn_implementation = "sdpa"
        return config

    monkeypatch.setattr(hf, "_checked_config", fused)
    monkeypatch.setattr(compare_outputs, "LENGTHS", (2048, 8192))
    monkeypatch.setattr(importer, "comparison_batches", lambda model, masks: comparison_batches(model, masks)[-1:])
    make, sizes = SIZES["ModernBERT-base"]
    imported = import_model(make(tmp_path / "source", **sizes), tmp_path / "imported")
    for each in imported.agreements:
        logger.info("ModernBERT-base, 2,048 and 8,192 tokens: %s", each.describe())
        assert each.difference <= 1e-5 * each.size and each.size > 0.5
