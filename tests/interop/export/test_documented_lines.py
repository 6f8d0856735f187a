"""The lines of the guide on ONNX and sentence-transformers, run as they are, compute what the checkpoint computes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.sources import ROOT

from fairseq_maelm import MaelmModel
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from interop.export.checkpoints import train_vocabulary, write_checkpoint

pytest.importorskip("transformers")

TEXTS = ["A sentence.", "And one more, which is longer."]


def blocks_with(word: str) -> list[str]:
    """The blocks of code of the guide that contain a word."""
    guide = (ROOT / "docs" / "guides" / "onnx.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .+\n)+", guide, re.MULTILINE)
    return [re.sub("^    ", "", block, flags=re.MULTILINE) for block in blocks if word in block]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaelmModel:
    """The hub interface of a checkpoint whose export is the folder ``folder``, in an empty working folder."""
    data = train_vocabulary(tmp_path / "data")
    write_checkpoint(tmp_path / "checkpoint.pt", data, scale=0.1, relative_num_buckets=32, relative_max_distance=128)
    settings = ExportSettings("mpnet", architecture="encoder")
    export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", settings)
    monkeypatch.chdir(tmp_path)
    return MaelmModel.from_pretrained(str(tmp_path), "checkpoint.pt", str(data))


def test_onnx(hub: Any) -> None:
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library)
    (export_lines,), (run_lines,), (quantize_lines,) = map(blocks_with, ("onnx.export(", "numpy", "dynamic("))
    exec(export_lines, {})
    found: dict[str, Any] = {}
    exec(run_lines, found)
    tokens = hub.encode_batch(TEXTS)
    inside = tokens.ne(hub.dictionary.pad()).numpy()
    assert np.array_equal(found["inputs"]["input_ids"], tokens.numpy())
    expected = hub.extract_features(tokens).detach().numpy()
    assert np.abs(found["states"] - expected)[inside].max() < 1e-5 < np.abs(expected).max()
    exec(quantize_lines, {})
    exec(run_lines.replace("model.onnx", "model_int8.onnx"), found)
    assert 1e-5 < np.abs(found["states"] - expected)[inside].max() < 0.2


def test_sentence_transformers(hub: Any) -> None:
    pytest.importorskip("sentence_transformers")
    found: dict[str, Any] = {}
    exec(*blocks_with("SentenceTransformer("), found)
    np.testing.assert_allclose(found["embeddings"], hub.embed(TEXTS).numpy(), rtol=0, atol=1e-5)
    assert not torch.allclose(*hub.embed(TEXTS), atol=1e-3)
