"""Scores equal those of the plain re-implementation, which hides one position at a time, and cases by hand."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import maelm_in_one_file as plain
import numpy as np
import pytest
import torch
from support import FAMILIES, dictionary_of, model_of, plain_of, random_sequences
from text.vocabularies import KINDS

from fairseq_maelm import MaelmModel
from fairseq_maelm.data.masking_variants import EncoderView
from fairseq_maelm.models.mask_filling import target_log_probabilities
from fairseq_maelm.scoring import sentence_scores as likelihood
from fairseq_maelm.scoring.reading import METHODS
from fairseq_maelm.scoring.sentence_scores import CheckpointScorer, Sentence, hidden_ends, pseudo_log_likelihoods, score
from fairseq_maelm.text.vocabulary import open_encoder

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
# Of tokens between <s> and </s>: words of 1, 3, 2 and 1 tokens.
WORDS = [-1, 1, 2, 2, 2, 3, 3, 4, -1]


def scorer_of(model: Any, view: EncoderView) -> CheckpointScorer:
    task = SimpleNamespace(encoder_view=view)
    hub: Any = SimpleNamespace(model=model, task=task, dictionary=dictionary_of(40), tokenizer=None)
    return CheckpointScorer(hub)


def by_brute_force(model: Any, view: EncoderView, sentence: Sentence, hidden: Sequence[Sequence[int]]) -> list[float]:
    """Return the plain model's log-probability at the first place of each list of hidden places."""
    state, config = plain_of(model)
    found = []
    for places in hidden:
        visible = [
            place for place in range(len(sentence.tokens)) if view.masked_input != "dropped" or place not in places
        ]
        tokens = [model.mask_index if place in places else int(sentence.tokens[place]) for place in visible]
        rows = [view.masked_input != "reset" or place not in places for place in visible]
        asked = plain.Sequence(
            tokens, visible, len(sentence.tokens), rows, [places[0]], [int(sentence.tokens[places[0]])]
        )
        found.append(-float(plain.forward(state, config, asked).loss.detach()))
    return found


HIDDEN = {
    "original": [[1], [2], [3], [4], [5], [6], [7]],
    "within_word_l2r": [[1], [2, 3, 4], [3, 4], [4], [5, 6], [6], [7]],
}


def test_what_is_hidden_with_a_token() -> None:
    sentence = Sentence(np.arange(9), np.array(WORDS))
    for method in METHODS:
        ends = hidden_ends(sentence, method)
        places = zip(sentence.scored.tolist(), ends.tolist())
        assert [list(range(*each)) for each in places] == HIDDEN[method]


@pytest.mark.parametrize(
    ("changes", "masked_input", "method"),
    [
        ({}, "dropped", "within_word_l2r"),
        ({}, "reset", "original"),
        ({"decoder_layers": 0}, "kept", "within_word_l2r"),
        ({**FAMILIES["modern"], "decoder_attention": "cross"}, "dropped", "original"),
        (
            {**FAMILIES["modern"], "decoder_attention": "shared", "local_attention": 4, "global_every": 2},
            "dropped",
            "within_word_l2r",
        ),
    ],
)
def test_scores_are_those_of_one_position_at_a_time(changes: dict[str, Any], masked_input: str, method: str) -> None:
    model, view = model_of(**changes), EncoderView(masked_input)
    sentences = [
        Sentence(tokens, np.array([-1, *WORDS[1 : len(tokens) - 1], -1])) for tokens in random_sequences([9, 4])
    ]
    found = pseudo_log_likelihoods(scorer_of(model, view), sentences, method, batch_tokens=40)
    for sentence, values in zip(sentences, found, strict=True):
        # The short one ends after the first token of the second word.
        hidden = HIDDEN[method] if len(sentence.tokens) == 9 else [[1], [2]]
        np.testing.assert_allclose(values, by_brute_force(model, view, sentence, hidden), rtol=1e-5, atol=1e-5)


def test_a_dropped_token_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sentences that differ at one place give it the same distribution, and equal ones tie to the last bit."""
    model = model_of()
    (tokens,) = random_sequences([8])
    other = tokens.copy()
    other[3] = 5 + (tokens[3] == 5)
    words = np.array([-1, *range(6), -1])
    scorer = scorer_of(model, EncoderView("dropped"))
    asked = []

    def count(model: Any, batch: dict[str, Any], target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(target))
        return target_log_probabilities(model, batch, target, rows)

    monkeypatch.setattr(likelihood, "target_log_probabilities", count)
    first, second, third = pseudo_log_likelihoods(scorer, [Sentence(each, words) for each in (tokens, other, tokens)])
    assert first.tobytes() == third.tobytes()
    assert sum(asked) == 6 + 6 - 1, "the context in which the difference is hidden is computed once"
    view = EncoderView("dropped")
    alone = pseudo_log_likelihoods(scorer_of(model, view), [Sentence(other, words)])[0]
    np.testing.assert_allclose(second, alone, atol=1e-5)
    assert not np.allclose(first, second)


def test_sentences_are_not_copied_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    length, number = 512, 8
    words = np.array([-1, *range(length - 2), -1])
    sentences = [Sentence(tokens, words) for tokens in random_sequences([length] * number)]
    monkeypatch.setattr(likelihood, "_fill", lambda *arguments: None)
    scorer = scorer_of(model_of(max_positions=length), EncoderView("dropped"))
    tracemalloc.start()
    pseudo_log_likelihoods(scorer, sentences)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < number * length * length * 8 / 4


def test_mixed_precision_gives_nearly_the_same() -> None:
    model = model_of()
    sentences = [Sentence(tokens, np.array([-1, *range(10), -1])) for tokens in random_sequences([12] * 8)]
    scorer = scorer_of(model, EncoderView("dropped"))
    exact = np.concatenate(pseudo_log_likelihoods(scorer, sentences))
    model.precision = scorer.precision = "bf16"
    rough = np.concatenate(pseudo_log_likelihoods(scorer, sentences))
    assert 0 < np.abs(rough - exact).mean() < 0.05 * np.abs(exact).mean()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        # Words behind white space, punctuation included.
        ("sentencepiece", ["the", "riverdogs", "ran,", "housemat."]),
        # Words as the tokenizer cuts text before it looks for its tokens.
        ("byte pairs", ["the", "riverdogs", "ran", ",", "housemat", "."]),
        ("word pieces", ["the", "riverdogs", "ran", ",", "housemat", "."]),
        # The export of a sentencepiece vocabulary agrees with it.
        ("exported", ["the", "riverdogs", "ran,", "housemat."]),
    ],
)
def test_words_of_vocabularies(kind: str, words: list[str], tmp_path: Path) -> None:
    encoder = open_encoder(KINDS[kind](tmp_path))
    text = "the riverdogs ran, housemat."
    (tokens, numbers), (none, no_numbers) = encoder.encode_words([text, ""])
    assert len(none) == len(no_numbers) == 0
    assert tokens.tolist() == encoder.encode([text])[0].tolist()[:-1]
    aligned = encoder.encode_with_offsets(text)
    assert aligned.tokens.tolist() == tokens.tolist()
    assert len(tokens) > len(words), "no word has several tokens"
    found = []
    for number in dict.fromkeys(numbers.tolist()):
        of_word = np.flatnonzero(numbers == number)
        found.append(text[aligned.begin[of_word[0]] : aligned.end[of_word[-1]]])
    assert found == words


def test_the_hub_scores_texts() -> None:
    hub = MaelmModel.from_pretrained(str(KEPT), "checkpoint_last.pt", str(KEPT / "data"))
    texts = ["The sailor is old.", "Every sailor takes the harbour home."]
    for method in METHODS:
        whole = score(hub, texts, method)
        for text, result in zip(texts, whole, strict=True):
            tokens = hub.encode(text)[1:-1].tolist()
            assert len(result.tokens) == len(result.log_probabilities) == len(tokens)
            assert result.sum == pytest.approx(sum(result.log_probabilities))
            assert result.per_token == pytest.approx(result.sum / len(tokens))
            assert "".join(result.tokens) == text.lower().replace(" ", "") or hub.decode(hub.encode(text)) != text
    # One token: what fill_mask says of a mask in its place.
    text = "The sailor <mask> old."
    candidate = hub.fill_mask(text, topk=1)[0][0]
    filled = score(hub, [candidate.text])[0]
    place = hub.encode(text)[1:-1].tolist().index(hub.model.mask_index)
    assert filled.tokens[place] == candidate.token
    assert np.exp(filled.log_probabilities[place]) == pytest.approx(candidate.probability, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "view", "reason"),
    [({"decoder_attention": "causal_cross"}, "dropped", "from left to right"), ({}, "random", "saw random tokens")],
)
def test_models_that_cannot_score_are_refused(changes: dict[str, Any], view: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        scorer_of(model_of(**changes), EncoderView(view))
