"""The encoders that come with the package: intact, small, the same for everybody."""

import json
from pathlib import Path

import pytest
import torch

from fairseq_maelm import MaelmModel
from fairseq_maelm.checkpoints.folder import read_sums
from fairseq_maelm.checkpoints.locate import find_checkpoint, shipped_encoders
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.files.atomic import sha256_of
from fairseq_maelm.interop.compare_outputs import PAD, STATES, agreements, comparison_batches

transformers = pytest.importorskip("transformers")

LARGEST_FOLDER = 40 * 2**20
# Every file of a folder; there are no others.
FILES = {
    *("README.md", "SHA256SUMS", "checkpoint.json", "config.json", "decoder_and_heads.safetensors", "dict.txt"),
    *("model.safetensors", "sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer.json"),
    "tokenizer_config.json",
}


@pytest.fixture(scope="module", params=shipped_encoders())
def folder(request: pytest.FixtureRequest) -> Path:
    return shipped_encoders()[request.param].parent


def test_its_files_have_the_recorded_checksums(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    found = {name: sha256_of(folder / name) for name in FILES - {"SHA256SUMS"}}
    assert found == read_sums(folder), "after an edit: sha256sum * > SHA256SUMS, without the line of SHA256SUMS itself"


def test_it_is_small_as_its_name_says(folder: Path) -> None:
    parameters = sum(weight.numel() for weight in read_checkpoint(find_checkpoint(folder)).weights.values())
    weights = sum((folder / name).stat().st_size for name in FILES if name.endswith(".safetensors"))
    # The headers of the files are JSON of about a hundred bytes per weight.
    assert 2 * parameters <= weights < 2 * parameters + 20_000
    assert sum(path.stat().st_size for path in folder.iterdir()) < LARGEST_FOLDER
    assert f"-{parameters / 1e6:.0f}m-" in folder.name


def test_its_card_is_filled_in(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"## {part}" in card for part in ("Use", "Training", "With fairseq_maelm", "License"))
    assert not read_checkpoint(find_checkpoint(folder)).config.task.data.strip("."), "a private folder"


def test_stock_transformers_computes_the_same_states(folder: Path) -> None:
    hub = MaelmModel.from_pretrained(str(folder))
    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "ModernBertModel" and model.dtype == torch.float32
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    (found,) = agreements(
        lambda tokens: {STATES: hub.extract_features(tokens)},
        lambda tokens: {STATES: model.eval()(tokens, attention_mask=tokens.ne(PAD).long()).last_hidden_state},
        comparison_batches(hub.model, masks=False),
        "AutoModel computes something else",
    )
    assert found.difference <= 1e-5 * max(1.0, found.size) and found.size > 1.0


def test_stock_transformers_reads_the_same_tokens(folder: Path) -> None:
    hub, tokenizer = MaelmModel.from_pretrained(str(folder)), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("The cat is old.", "a <mask> here", "1,000 Übung!"):
        assert tokenizer(text)["input_ids"] == hub.encode(text).tolist()


def test_it_fills_masks(folder: Path) -> None:
    (candidates,) = MaelmModel.from_pretrained(str(folder)).fill_mask("The <mask> is old.")
    assert len(candidates) == 5 and 0 < sum(each.probability for each in candidates) <= 1
    assert json.loads((folder / "config.json").read_text())["model_type"] == "modernbert"
