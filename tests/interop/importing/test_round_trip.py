"""Export to a Hugging Face folder and import restore every tensor bit for bit, for both formats."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.checkpoints.plain_data import read_state
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import CHECKPOINT_FILE, import_model
from interop.export.checkpoints import train_vocabulary, write_checkpoint

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_vocabulary(tmp_path_factory.mktemp("data"))


MPNET = {"relative_num_buckets": 32, "relative_max_distance": 128}
BERT = {"relative_buckets": "none", "decoder_layers": 0}
MODERN = {"layer": "modern", "positions": "rotary", "relative_buckets": "none", "rotary_base": 10_000}
TAGS, ANSWERS, CLASSES = ("tagging_head",), ("span_head",), ("sentence_classification_head",)
KEPT = {"masked_input": "kept"}
# Every family, and each of its heads whose names of weights are its own.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "encoder as mpnet": ("mpnet", {}, MPNET, ()),
    "mlm as mpnet": ("mpnet", KEPT, {**MPNET, "decoder_layers": 0, "layer_norm_eps": 1e-12}, ()),
    "classes as mpnet": ("mpnet", {"_name": "sentence_prediction"}, MPNET, CLASSES),
    "mlm as roberta": ("roberta", KEPT, BERT, ()),
    "tags as roberta": ("roberta", {"_name": "maelm_tagging"}, {"relative_buckets": "none"}, TAGS),
    "reference buckets": ("maelm", {}, {"relative_buckets": "reference"}, ()),
    "answers": ("maelm", {"_name": "maelm_squad"}, {}, ANSWERS),
    "encoder as modernbert": ("modernbert", {}, MODERN, ()),
    "two rotary bases": (
        "modernbert",
        KEPT,
        {**MODERN, "decoder_layers": 0, "encoder_layers": 5, "local_attention": 6, "local_rotary_base": 500},
        (),
    ),
    "classes as modernbert": ("modernbert", {"_name": "sentence_prediction"}, MODERN, CLASSES),
    "tags as modernbert": ("modernbert", {"_name": "maelm_tagging"}, MODERN, TAGS),
    "mlm as bert": ("bert", KEPT, BERT, ()),
    "classes as bert": ("bert", {"_name": "sentence_prediction"}, BERT, CLASSES),
    "encoder as electra": ("electra", {}, {"relative_buckets": "none"}, ()),
    "mlm as distilbert": ("distilbert", KEPT, {**BERT, "layer_norm_eps": 1e-12}, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_comes_back(data: Path, tmp_path: Path, case: str) -> None:
    form, task, model, heads = CASES[case]
    checkpoint = tmp_path / "checkpoint.pt"
    write_checkpoint(checkpoint, data, task, heads, **model)
    export(checkpoint, data, tmp_path / "folder", ExportSettings(form))
    imported = import_model(tmp_path / "folder", tmp_path / "imported")
    before = torch.load(checkpoint, weights_only=True)
    after = read_state(tmp_path / "imported" / CHECKPOINT_FILE)
    lost = {name for name in before["model"] if name not in after["model"]}
    assert lost <= {name for name in before["model"] if name.startswith(("decoder.", "lm_head."))}
    # An LM head goes along in stock formats, if no decoder stands between it and the encoder.
    assert bool(lost) == (not heads and "masked_input" not in task)
    assert not set(after["model"]) - set(before["model"])
    for name, tensor in after["model"].items():
        if name == SETTINGS and (lost or heads):
            continue  # without the settings of the decoder, which the folder has not
        assert torch.equal(tensor, before["model"][name]) and tensor.dtype == before["model"][name].dtype, name
    assert (tmp_path / "imported" / "dict.txt").read_text() == (data / "dict.txt").read_text()
    words = imported.model_options
    assert "False" not in words
    assert ("--layer-norm-eps" in words) == ("layer_norm_eps" in model)
    assert after["cfg"]["model"]["layer_norm_eps"] == model.get("layer_norm_eps", 1e-5)
    assert ("--local-rotary-base" in words) == (case == "two rotary bases")
    if not heads and not lost:
        assert [each.what for each in imported.agreements] == ["hidden states", "masked-lm scores"]
        assert after["cfg"]["task"]["masked_input"] == task.get("masked_input", "dropped")
        assert after["cfg"]["task"]["encoder_positions"] == task.get("encoder_positions", "original")
