"""Batched pseudo-log-likelihoods, where each token of a sentence is predicted from the other tokens.

Salazar et al. (2020, "Masked Language Model Scoring") hide one token at a time. Kauf and Ivanova (2023, "A Better Way
to Do Masked Language Model Scoring") also hide the rest of the word, from which the token is too easy to predict.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.masking_variants import EncoderView, encoder_input_of_masks
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.models.mask_filling import target_log_probabilities
from fairseq_maelm.modules.autocast import computing_in
from fairseq_maelm.scoring.reading import METHODS
from fairseq_maelm.text.cleaning import checked_texts, clean_text


class Sentence(NamedTuple):
    """A tokenized text."""

    tokens: NDArray[np.int64]  # <int64>[n], special symbols included
    words: NDArray[np.int64]  # <int64>[n] index of each token's word, -1 for tokens that are not scored

    @property
    def scored(self) -> NDArray[np.int64]:
        """Return the indices of scored tokens."""
        return np.flatnonzero(self.words >= 0)


class CheckpointScorer:
    """A pretrained checkpoint that predicts hidden tokens, dropped (MAE-LM) or <mask> (MLM) as in pretraining."""

    def __init__(self, hub: MaelmHubInterface) -> None:
        self._hub, self.model = hub, hub.model
        self.view: EncoderView = getattr(hub.task, "encoder_view", EncoderView())
        if hub.model.lm_head is None:
            raise ValueError(hub.model.why_no_lm_head())
        if hub.model.decoder is not None and hub.model.decoder.autoregressive:
            raise ValueError("the model's decoder reads from left to right, so it cannot predict hidden tokens")
        if self.view.masked_input in ("random", "random_kept"):
            raise ValueError(
                f"with --masked-input {self.view.masked_input} the encoder saw random tokens in place of hidden ones, "
                "so scores would not be reproducible: give a checkpoint with another --masked-input"
            )
        self.mask, self.pad, self.precision = hub.model.mask_index, hub.dictionary.pad(), hub.model.precision

    def encode(self, texts: Sequence[str], places: Sequence[str]) -> list[Sentence]:
        """Tokenize texts; raise ValueError, with the place, for the first text that cannot be scored."""
        first, last = self._hub.dictionary.bos(), self._hub.dictionary.eos()
        sentences, longest = [], self._hub.model.max_positions()
        for place, (tokens, words) in zip(places, self._hub.tokenizer.encoder.encode_words(texts), strict=True):
            if not (words >= 0).any():
                raise ValueError(f"{place}: the text has no tokens to score")
            if len(tokens) + 2 > longest:
                raise ValueError(
                    f"{place}: the text has {len(tokens) + 2} tokens and the model has {longest} positions: split it"
                )
            sentences.append(Sentence(np.concatenate([[first], tokens, [last]]), np.concatenate([[-1], words, [-1]])))
        return sentences


class _Context(NamedTuple):
    """A sentence with masks; equal contexts are computed only once.

    They occur in equal sentences, whose scores are then equal to the last bit, and in minimal pairs when the tokens
    that differ are masked.
    """

    first: int  # index of the first mask
    end: int  # end of the masks (exclusive)
    digest: bytes  # of the masked sequence, which would take eight bytes a token for every token


class _Asked(NamedTuple):
    """What is asked of a context: the index of a sentence that has it, and the log-probability of each target."""

    sentence: int
    targets: dict[int, float]


def pseudo_log_likelihoods(
    scorer: CheckpointScorer, sentences: Sequence[Sentence], method: str = METHODS[0], batch_tokens: int = 4096
) -> list[NDArray[np.float64]]:
    """Return the log-probabilities, in nats, of sentences' scored tokens; raise ValueError if one is not finite."""
    wanted: list[list[tuple[_Context, int]]] = []
    asked: dict[_Context, _Asked] = {}
    for index, sentence in enumerate(sentences):
        wanted.append([])
        for first, end in zip(sentence.scored.tolist(), hidden_ends(sentence, method).tolist()):
            digest = hashlib.blake2b(_masked(sentence, first, end, scorer.mask).tobytes(), digest_size=16).digest()
            context, target = _Context(first, end, digest), int(sentence.tokens[first])
            asked.setdefault(context, _Asked(index, {})).targets[target] = 0.0
            wanted[-1].append((context, target))
    _fill(scorer, sentences, asked, batch_tokens)
    found = [np.array([asked[context].targets[target] for context, target in each]) for each in wanted]
    if not all(np.isfinite(each).all() for each in found):
        raise ValueError("the model's probabilities are not finite numbers: its weights are damaged")
    return found


def hidden_ends(sentence: Sentence, method: str) -> NDArray[np.int64]:
    """Return, for each scored token, the end index (exclusive) of the tokens that are hidden with it."""
    scored = sentence.scored
    if method != "within_word_l2r":
        return scored + 1
    # A word ends where the next token belongs to another word.
    ends = np.append(np.flatnonzero(np.diff(sentence.words)) + 1, len(sentence.words))
    return ends[np.searchsorted(ends, scored, side="right")]


def _masked(sentence: Sentence, first: int, end: int, mask: int) -> NDArray[np.int64]:
    tokens = sentence.tokens.copy()
    tokens[first:end] = mask
    return tokens


def _fill(
    scorer: CheckpointScorer, sentences: Sequence[Sentence], asked: dict[_Context, _Asked], batch_tokens: int
) -> None:
    # Among contexts of one length, those with equally many masks are adjacent, so that dropping masks needs no padding.
    contexts = sorted(asked, key=lambda context: context.end - context.first)
    sources = [sentences[asked[context].sentence] for context in contexts]
    lengths = np.array([len(sentence.tokens) for sentence in sources], dtype=np.int64)

    def collate(places: Places) -> tuple[Any, Tensor, Tensor]:
        rows = [_masked(sources[each], contexts[each].first, contexts[each].end, scorer.mask) for each in places]
        tokens = pad_rows(rows, lengths[places], scorer.pad)
        masks = tokens == scorer.mask
        wanted = [np.array(list(asked[contexts[place]].targets)) for place in places]
        # Contexts with fewer targets than others are padded with symbol 0, whose result is ignored.
        targets_of_masks = pad_rows(wanted, np.array(list(map(len, wanted))), 0)
        net_input = encoder_input_of_masks(tokens, lengths[places], masks, scorer.view, scorer.pad)
        # The first mask of a context is asked for. A shared decoder's masks read one another, so all are predicted.
        counts = masks.sum(axis=1)
        return net_input, torch.from_numpy(targets_of_masks), torch.from_numpy(np.cumsum(counts) - counts)

    def forward(batch: tuple[Any, Tensor, Tensor]) -> list[list[float]]:
        return target_log_probabilities(scorer.model, *batch).double().tolist()

    # One context manager for all batches, so that weights are cast once.
    with computing_in(scorer.precision, next(scorer.model.parameters()), training=False):
        rows = predict(scorer.model, lengths, collate, forward, batch_tokens)
    for context, row in zip(contexts, rows):
        targets = asked[context].targets
        targets.update(zip(targets, row))


class SentenceScore(NamedTuple):
    """The pseudo-log-likelihood of a sentence, in nats."""

    sum: float  # over the tokens
    per_token: float  # mean over the tokens
    tokens: list[str]  # as text, without <s> and </s>
    log_probabilities: list[float]  # of each token


def score(
    hub: MaelmHubInterface, texts: Sequence[str], method: str = METHODS[0], batch_tokens: int = 4096
) -> list[SentenceScore]:
    """Compute pseudo-log-likelihoods: hide and predict each token of a sentence, and sum the log-probabilities.

    Args:
        hub: an opened checkpoint that can fill masks.
        texts: the sentences; <mask> in them is ordinary text.
        method: "original" hides one token at a time; "within_word_l2r" also hides the rest of the token's word.
        batch_tokens: number of tokens in a batch.

    Raises:
        ValueError: the checkpoint cannot fill masks, or a text is empty or longer than the model's positions.
    """
    texts = checked_texts(texts)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    scorer = CheckpointScorer(hub)
    sentences = scorer.encode([clean_text(text) for text in texts], [repr(text) for text in texts])
    scores = []
    for each, values in zip(sentences, pseudo_log_likelihoods(scorer, sentences, method, batch_tokens)):
        tokens = [hub.tokenizer.decode([token]) or hub.dictionary[token] for token in each.tokens[each.scored]]
        scores.append(SentenceScore(float(values.sum()), float(values.mean()), tokens, values.tolist()))
    return scores
