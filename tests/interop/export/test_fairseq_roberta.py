"""Exports for fairseq's own model roberta, which stock fairseq opens without this package's classes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.roberta import RobertaModel

from fairseq_maelm import cli
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from interop.export.checkpoints import train_vocabulary, write_checkpoint
from interop.export.test_elsewhere import without_package
from interop.importing.sources import fairseq_checkpoint

BERT = {"relative_buckets": "none", "decoder_layers": 0, "task": {"masked_input": "kept"}}


# Stock fairseq in a process without this package, with its tokenizer; prints its scores of a sentence.
STOCK = """
import sys
sys.modules["fairseq_maelm"] = None
from fairseq.models.roberta import RobertaModel
folder = sys.argv[1]
hub = RobertaModel.from_pretrained(folder, checkpoint_file="model.pt", data_name_or_path=folder, bpe="sentencepiece")
tokens = hub.eval().encode("The old house by the river.")
print(tokens.tolist(), hub.extract_features(tokens).tolist(), hub.model(tokens[None])[0].tolist(), sep="\\n")
"""


def test_stock_fairseq_opens_it(tmp_path: Path) -> None:
    data = train_vocabulary(tmp_path / "data")
    write_checkpoint(tmp_path / "checkpoint.pt", data, **BERT)
    export(tmp_path / "checkpoint.pt", data, tmp_path / "stock", ExportSettings("fairseq-roberta"))
    said = without_package(STOCK, tmp_path / "stock").stdout.splitlines()[-3:]
    found, states, scores = (torch.tensor(json.loads(line)) for line in said)
    source = load_with_model(tmp_path / "checkpoint.pt", data)
    tokens = torch.tensor([[0, *source.tokenizer.encode("The old house by the river."), 2]])
    assert found.tolist() == tokens[0].tolist()
    with torch.no_grad():
        torch.testing.assert_close(states, source.model.extract_features(tokens)[0], rtol=1e-5, atol=1e-5)
    assert scores.shape == (1, tokens.shape[1], len(source.dictionary))


def logits(folder: Path) -> torch.Tensor:
    """Return the scores of stock fairseq for two sequences, one padded."""
    model = RobertaModel.from_pretrained(str(folder), "model.pt", str(folder), bpe=None).eval().model
    mask = len(model.encoder.dictionary) - 1
    with torch.no_grad():
        return model(torch.tensor([[0, 9, mask, 12, 7, 2], [0, mask, 30, 2, 1, 1]]))[0]


def test_what_came_from_fairseqs_roberta_goes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = fairseq_checkpoint(tmp_path / "source")
    import_model(source, tmp_path / "imported")
    words = ["--checkpoint", tmp_path / "imported", "--output", tmp_path / "back", "--format", "fairseq-roberta"]
    cli.main(["export", *map(str, words)])
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'back' / 'model.pt'}: fairseq's roberta, verified\n")
    before, after = (torch.load(folder / "model.pt")["model"] for folder in (source.parent, tmp_path / "back"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    # The rows of positions before the first one are not used.
    assert changed == {"encoder.sentence_encoder.embed_positions.weight"}
    assert torch.equal(logits(tmp_path / "back"), logits(source.parent))
    assert (tmp_path / "back" / "sentencepiece.bpe.model").is_file()
    assert import_model(tmp_path / "back" / "model.pt", tmp_path / "again").agreements[1].what == "masked-lm scores"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**BERT, "layer_norm_eps": 1e-12}, "its --layer-norm-eps is 1e-12, but fairseq's always computes 1e-05$"),
        ({"relative_buckets": "none"}, "predicts masked tokens by its decoder, .*Without the decoder: --with-mlm-head"),
        ({}, "its --relative-buckets is t5"),
        ({**BERT, "task": {"_name": "maelm_tagging"}, "heads": ("tags",)}, "the checkpoint has no LM head"),
    ],
)
def test_other_models_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = train_vocabulary(tmp_path / "data")
    write_checkpoint(tmp_path / "checkpoint.pt", data, **options)
    with pytest.raises(ValueError, match=f"cannot become a checkpoint of fairseq's roberta: .*{message}"):
        export(tmp_path / "checkpoint.pt", data, tmp_path / "out", ExportSettings("fairseq-roberta"))
    assert not (tmp_path / "out").exists()


def test_options_for_transformers_are_refused() -> None:
    with pytest.raises(ValueError, match="--license has no effect with --format fairseq-roberta"):
        ExportSettings("fairseq-roberta", license="mit")
