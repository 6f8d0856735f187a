"""The model card of an adapted published encoder keeps what is known of its source."""

import json
from pathlib import Path

import pytest
import torch

from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model

from . import sources

CARD = "---\nlanguage: en\nlicense: apache-2.0\ntags:\n- x\n---\n# Sailors\n\nTrained on all the seas.\n"
POOLING = {"word_embedding_dimension": 48, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def sentence_encoder(folder: Path) -> Path:
    sources.bert(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "modules.json").write_text("[]")
    (folder / "README.md").write_text(CARD)
    return folder


def adapted(imported: Path, updates: int) -> Path:
    """Write the checkpoint that some updates without masks in the encoder leave, next to the vocabulary."""
    export(imported / CHECKPOINT_FILE, None, imported.parent / "run", ExportSettings("fairseq"))
    path = imported.parent / "run" / "checkpoint_best.pt"
    state = torch.load(path)
    state["cfg"]["task"]["masked_input"] = "dropped"
    state["optimizer_history"] = [{"num_updates": updates}]
    torch.save(state, path)
    return path


@pytest.mark.parametrize(("form", "given"), [(None, None), ("roberta", "mit")])
def test_an_adapted_encoder_names_its_source(form: str | None, given: str | None, tmp_path: Path) -> None:
    source = sentence_encoder(tmp_path / "source")
    import_model(source, tmp_path / "imported", name="someone/sailors")
    checkpoint = adapted(tmp_path / "imported", 50)
    done = export(checkpoint, None, tmp_path / "out", ExportSettings(form, architecture="encoder", license=given))
    card = (done.folder / "README.md").read_text()
    metadata = card.split("---\n")[1].splitlines()
    assert f"license: {given or 'apache-2.0'}" in metadata and 'base_model: "someone/sailors"' in metadata
    digest = sha256_of(source / "model.safetensors")
    for fact in (
        "imported from someone/sailors, then trained for 50 updates in which its encoder never sees [MASK] (MAE-LM)",
        f"| SHA-256 of model.safetensors | {digest} |",
        "| pooling in sentence-transformers | mean |",
    ):
        assert fact in card
    assert "whose encoder never sees" not in card
    assert ('SentenceTransformer("out")' in card) == (form is None)
    assert (done.folder / "README_of_source.md").read_text() == CARD


def test_fairseqs_roberta_is_named_too(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    import_model(checkpoint, tmp_path / "imported")
    export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings())
    card = (tmp_path / "out" / "README.md").read_text()
    assert '\nbase_model: "model.pt"\n' in card and f"| SHA-256 of model.pt | {sha256_of(checkpoint)} |" in card
