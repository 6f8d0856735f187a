"""Imported models score as minicons scores their Hugging Face folders, which are imported first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text.vocabularies import TEXT

from fairseq_maelm import MaelmModel
from fairseq_maelm.cli import main
from fairseq_maelm.files.optional_imports import import_transformers
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.scoring.reading import METHODS
from fairseq_maelm.scoring.sentence_scores import score

tokenizers = pytest.importorskip("tokenizers")
transformers = import_transformers()

SENTENCES = ["the cats ran away, over the river.", "a mat!", "the houses stood still and the gardener ran."]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 60,
}
SPECIAL = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), ("<s>", "<pad>", "</s>", "<unk>")))


def save_model(folder: Path) -> Path:
    """Save a tiny RoBERTa with large random weights and byte pairs."""
    inner, symbols = tokenizers.ByteLevelBPETokenizer(), [*SPECIAL.values(), "<mask>"]
    inner.train_from_iterator(TEXT, vocab_size=340, special_tokens=symbols, show_progress=False)
    inner._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner._tokenizer, **SPECIAL, mask_token="<mask>", model_max_length=1000
    )
    fast.save_pretrained(folder)
    config = transformers.RobertaConfig(**SIZES, vocab_size=len(fast), pad_token_id=1, type_vocab_size=1)
    torch.manual_seed(0)
    model = transformers.RobertaForMaskedLM(config)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    model.save_pretrained(folder)
    return folder


def test_scores_are_those_of_minicons(tmp_path: Path) -> None:
    minicons = pytest.importorskip("minicons.scorer")
    folder = save_model(tmp_path / "model")
    hub = MaelmModel.from_pretrained(str(import_model(folder, tmp_path / "imported").folder))
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    reference = minicons.MaskedLMScorer(model, "cpu", tokenizer=transformers.AutoTokenizer.from_pretrained(folder))
    # Encoded here, because minicons asks for a method of tokenizers that transformers 5 no longer has.
    encoded = reference.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    for method in METHODS:
        expected = reference.compute_stats(reference.prepare_text(encoded, PLL_metric=method))
        for each, theirs in zip(score(hub, SENTENCES, method), expected, strict=True):
            np.testing.assert_allclose(each.log_probabilities, theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("command", ["score", "analyze"])
def test_a_folder_must_be_imported_first(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    name = "" if command == "score" else "a="
    for path, more in ((str(tmp_path), ""), ("someone/model", " --download")):
        words = ["--checkpoint", f"{name}{path}", "--output", str(tmp_path / "out")]
        with pytest.raises(SystemExit) as stopped:
            main([command, *([__file__] if command == "score" else []), *words])
        assert stopped.value.code == 2 and f"`maelm import {path}{more} --output FOLDER`" in capsys.readouterr().err
