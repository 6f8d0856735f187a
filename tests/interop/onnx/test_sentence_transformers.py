"""Exported folders in sentence-transformers, with the pooling of a retrieval checkpoint or the mean."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm import MaelmModel
from fairseq_maelm.interop.export.content import Content
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.export.sentence_vectors import sentence_vectors_of
from fairseq_maelm.interop.export.source import load_source
from fairseq_maelm.interop.importing.run import import_model
from fairseq_maelm.libraries import import_transformers

pytest.importorskip("transformers")
import_transformers()
pytest.importorskip("sentence_transformers")

TEXTS = ["The sailor takes the rope to the harbour.", "A judge objects.", "slowly"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from interop.importing import sources

    root = tmp_path_factory.mktemp("retrieval")
    tokenizer, sentencepiece = sources.pieces(root)
    sources.save(root / "source", "MPNet", tokenizer, tokenizer.get_vocab_size())
    (root / "source" / "sentencepiece.bpe.model").write_bytes(sentencepiece)
    import_model(root / "source", root / "data")
    return root / "data"


def trained_for_retrieval(data: Path, **task: Any) -> Path:
    """Give a checkpoint the options of a task with vectors of texts, and remove its LM head."""
    state = torch.load(data / "checkpoint_best.pt", weights_only=True)
    state["model"] = {name: weight for name, weight in state["model"].items() if not name.startswith("lm_head.")}
    state["cfg"]["task"] |= task
    path = data / "retrieval.pt"
    torch.save(state, path)
    return path


@pytest.mark.parametrize(("pooling", "similarity", "form"), [("mean", "cosine", "mpnet"), ("first", "dot", "maelm")])
def test_retrieval_checkpoints_carry_their_pooling(
    data: Path, tmp_path: Path, pooling: str, similarity: str, form: str
) -> None:
    from sentence_transformers import SentenceTransformer

    checkpoint = trained_for_retrieval(data, pooling=pooling, similarity=similarity, tokens_per_sample=12)
    exported = export(checkpoint, data, tmp_path / "folder", ExportSettings(form))
    assert [each.what for each in exported.agreements] == ["hidden states", "vectors of sentence-transformers"]
    model = SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    assert model.max_seq_length == 12 and str(model.similarity_fn_name) == similarity
    hub = MaelmModel.from_pretrained(str(data))
    for text, vector in zip(TEXTS, torch.from_numpy(model.encode(TEXTS))):
        tokens = hub.encode(text)
        tokens = torch.cat([tokens[:-1][:11], tokens[-1:]])
        with torch.no_grad():
            states = hub.extract_features(tokens)[0]
        expected = states.mean(dim=0) if pooling == "mean" else states[0]
        expected = expected / expected.norm() if similarity == "cosine" else expected
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-5)


def test_other_encoders_load_with_the_mean(data: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    settings = ExportSettings("mpnet", architecture="encoder")
    export(data / "checkpoint_best.pt", data, tmp_path / "folder", settings)
    assert not (tmp_path / "folder" / "modules.json").exists()
    model = SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    hub = MaelmModel.from_pretrained(str(data))
    with torch.no_grad():
        expected = torch.stack([hub.extract_features(hub.encode(text))[0].mean(dim=0) for text in TEXTS])
    torch.testing.assert_close(torch.from_numpy(model.encode(TEXTS)), expected, rtol=0, atol=1e-5)


def test_settings_that_are_not_known_are_refused(data: Path) -> None:
    checkpoint = trained_for_retrieval(data, pooling="max", similarity="dot")
    with pytest.raises(ValueError, match="pools by 'max'"):
        sentence_vectors_of(load_source(checkpoint, data), Content("mpnet", "encoder"))
