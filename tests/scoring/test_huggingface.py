"""Hugging Face models score as one position at a time does, and as minicons does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text.vocabularies import TEXT

from fairseq_maelm import MaelmModel
from fairseq_maelm.arguments import model_path
from fairseq_maelm.cli import main
from fairseq_maelm.libraries import import_transformers
from fairseq_maelm.scoring.hub import score
from fairseq_maelm.scoring.huggingface import _HEADS, HuggingFaceScorer
from fairseq_maelm.scoring.likelihood import METHODS, Sentence, hidden_ends, pseudo_log_likelihoods

tokenizers = pytest.importorskip("tokenizers")
transformers = import_transformers()

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
SENTENCES = ["the cats ran away, over the river.", "a mat!", "the houses stood still and the gardener ran."]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 60,
}
# Options that say the sizes by other names.
OPTIONS: dict[str, dict[str, Any]] = {
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "Electra": {"embedding_size": 32},
    "Albert": {"embedding_size": 16},
    "ModernBert": {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
    "MPNet": {},
    "Bert": {},
    "Roberta": {},
}
SPECIAL = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), ("<s>", "<pad>", "</s>", "<unk>")))


def save_model(family: str, folder: Path, auto_class: str = "ForMaskedLM", **changes: Any) -> Path:
    """Save a tiny model with large random weights, and a tokenizer of RoBERTa's or BERT's kind."""
    if family == "Roberta":
        inner, kind = tokenizers.ByteLevelBPETokenizer(), tokenizers.processors.RobertaProcessing
        size = 340
    else:
        inner, kind = tokenizers.BertWordPieceTokenizer(lowercase=True), tokenizers.processors.BertProcessing
        size = 80
    symbols = [*SPECIAL.values(), "<mask>"]
    inner.train_from_iterator(TEXT, vocab_size=size, special_tokens=symbols, show_progress=False)
    inner._tokenizer.post_processor = kind(("</s>", 2), ("<s>", 0))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner._tokenizer, **SPECIAL, mask_token="<mask>", model_max_length=1000
    )
    fast.save_pretrained(folder)
    options = {**SIZES, **OPTIONS[family], "vocab_size": len(fast) + 3, "pad_token_id": 1, **changes}
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}{auto_class}")(getattr(transformers, f"{family}Config")(**options))
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    model.save_pretrained(folder)
    return folder


def by_brute_force(folder: Path, sentence: Sentence, method: str) -> list[float]:
    """Return the model's log-probabilities of hidden tokens, computed one token at a time."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    found = []
    for place, end in zip(sentence.scored.tolist(), hidden_ends(sentence, method).tolist()):
        tokens = torch.tensor(sentence.tokens)[None]
        target = int(tokens[0, place])
        tokens[0, place:end] = 4
        with torch.no_grad():
            logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        found.append(float(logits[0, place].log_softmax(dim=-1)[target]))
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", OPTIONS)
def test_scores_are_those_of_one_position_at_a_time(family: str, method: str, tmp_path: Path) -> None:
    folder = save_model(family, tmp_path / "model")
    scorer = HuggingFaceScorer(folder, "fp32", "cpu")
    taken: list[torch.Size] = []
    head = scorer.model.get_submodule(next(name for name, _ in scorer.model.named_children() if name in _HEADS))
    head.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0].shape))
    sentences = scorer.encode(SENTENCES, with_words=True)
    found = pseudo_log_likelihoods(scorer, sentences, method, batch_tokens=80)
    for sentence, values in zip(sentences, found, strict=True):
        np.testing.assert_allclose(values, by_brute_force(folder, sentence, method), rtol=1e-4, atol=1e-4)
    # The head computes nothing for places that are not asked for.
    assert sum(shape[0] for shape in taken) <= sum(len(sentence.scored) for sentence in sentences)
    assert all(len(shape) == 2 for shape in taken)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_scores_are_those_of_minicons(family: str, method: str, tmp_path: Path) -> None:
    minicons = pytest.importorskip("minicons.scorer")
    folder = save_model(family, tmp_path / "model")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    reference = minicons.MaskedLMScorer(model, "cpu", tokenizer=transformers.AutoTokenizer.from_pretrained(folder))
    scorer = HuggingFaceScorer(folder, "fp32", "cpu")
    found = pseudo_log_likelihoods(scorer, scorer.encode(SENTENCES, with_words=True), method)
    # Encoded here, because minicons asks for a method of tokenizers that transformers 5 no longer has.
    encoded = reference.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = reference.compute_stats(reference.prepare_text(encoded, PLL_metric=method))
    for values, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, theirs, rtol=0, atol=1e-4)
    sums = reference.sequence_score(encoded, reduction=lambda each: each.sum(0).item(), PLL_metric=method)
    np.testing.assert_allclose([each.sum() for each in found], sums, rtol=0, atol=1e-4)


def test_the_methods_differ_where_words_have_several_tokens(tmp_path: Path) -> None:
    scorer = HuggingFaceScorer(save_model("Bert", tmp_path / "model"), "fp32", "cpu")
    (sentence,) = scorer.encode(["the riverdogs"], with_words=True)
    words = sentence.words[sentence.scored].tolist()
    assert words[0] == 0 and set(words[1:]) == {1} and len(words) > 2
    original, within = (pseudo_log_likelihoods(scorer, [sentence], method)[0] for method in METHODS)
    # Nothing follows the last token of a word.
    equal = [words[place : place + 2] != [1, 1] for place in range(len(words))]
    assert np.isclose(original, within, atol=1e-5).tolist() == equal


def test_symbols_in_a_text_are_text(tmp_path: Path) -> None:
    scorer = HuggingFaceScorer(save_model("Roberta", tmp_path / "model"), "fp32", "cpu")
    (sentence,) = scorer.encode(["a <mask> ran"], with_words=False)
    assert not {0, 1, 2, 4} & set(sentence.tokens[sentence.scored].tolist())


@pytest.mark.parametrize("method", METHODS)
def test_an_export_scores_as_its_checkpoint(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--checkpoint", str(KEPT), "--vocabulary", str(KEPT / "data")]
    main(["export", *given, "--output", str(tmp_path / "model"), "--format", "maelm"])
    texts = ["The sailor is old.", "Every sailor takes the harbour home."]
    (tmp_path / "text.txt").write_text("\n".join(texts) + "\n")
    out = ["--output", str(tmp_path / "out"), "--method", method, "--device", "cpu"]
    main(["score", str(tmp_path / "text.txt"), "--checkpoint", str(tmp_path / "model"), *out])
    rows = [line.split("\t") for line in (tmp_path / "out" / "scores.tsv").read_text().splitlines()[1:]]
    hub = MaelmModel.from_pretrained(str(KEPT), "checkpoint_last.pt", str(KEPT / "data"))
    assert HuggingFaceScorer(tmp_path / "model", "fp32", "cpu").longest == hub.model.max_positions()
    expected = score(hub, texts, method)
    np.testing.assert_allclose([float(row[4]) for row in rows], [each.sum for each in expected], atol=1e-3)
    assert [int(row[6]) for row in rows] == [len(each.tokens) for each in expected]


def test_what_is_no_masked_language_model_is_refused(tmp_path: Path) -> None:
    def refused(folder: Path, reason: str) -> None:
        (tmp_path / "text.txt").write_text("the cats ran away.\n")
        words = ["--checkpoint", str(folder), "--output", str(tmp_path / f"{folder.name}_out"), "--device", "cpu"]
        with pytest.raises(SystemExit, match=f"maelm score: error: .*{reason}"):
            main(["score", str(tmp_path / "text.txt"), *words])

    refused(save_model("Bert", tmp_path / "encoder", "Model"), "is not a masked language model: its weights lack")
    refused(save_model("Bert", tmp_path / "short", max_position_embeddings=5), "tokens and the model has 5 positions")
    damaged = save_model("Bert", tmp_path / "damaged")
    model = transformers.AutoModelForMaskedLM.from_pretrained(damaged)
    model.cls.predictions.bias.data[7] = torch.nan
    model.save_pretrained(damaged)
    refused(damaged, "its weights are damaged")


def test_a_name_stands_for_a_model_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    snapshot = tmp_path / "models--somebody--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--somebody--tiny" / "refs").mkdir()
    (tmp_path / "models--somebody--tiny" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert model_path("somebody/tiny") == snapshot == model_path(str(snapshot))
    for name in ("somebody/other", "no such/name/at all"):
        with pytest.raises(Exception, match="there is no checkpoint"):
            model_path(name)
