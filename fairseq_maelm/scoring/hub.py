"""Scores of sentences by a checkpoint that the hub interface has opened."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.data.masking_variants import EncoderView, encoder_input_of_masks
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.models.mask_filling import target_log_probabilities
from fairseq_maelm.scoring.likelihood import METHODS, Sentence, pseudo_log_likelihoods, refusal
from fairseq_maelm.text.cleaning import clean_text


class SentenceScore(NamedTuple):
    """The pseudo-log-likelihood of a sentence, in nats.

    Attributes:
        sum: sum over the tokens.
        per_token: mean over the tokens.
        tokens: the tokens as text, without <s> and </s>.
        log_probabilities: one for each token.
    """

    sum: float
    per_token: float
    tokens: list[str]
    log_probabilities: list[float]


def score(
    hub: MaelmHubInterface, texts: Sequence[str], method: str = METHODS[0], batch_tokens: int = 4096
) -> list[SentenceScore]:
    """Score sentences by pseudo-log-likelihood: hide each token, and add up the log-probabilities of hidden tokens.

    Args:
        hub: an opened checkpoint that can fill masks.
        texts: the sentences; <mask> in them is ordinary text.
        method: "original" hides one token at a time; "within_word_l2r" also hides the rest of the token's word.
        batch_tokens: number of tokens in a batch.

    Raises:
        ValueError: the checkpoint cannot fill masks, or a text is empty or longer than the model's positions.
    """
    if isinstance(texts, str):
        raise ValueError("score takes a list of texts: put a single text into a list")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    scorer = CheckpointScorer(hub)
    sentences = scorer.encode([clean_text(text) for text in texts], with_words=method != METHODS[0])
    for text, sentence in zip(texts, sentences):
        if problem := refusal(scorer, sentence):
            raise ValueError(f"{text!r}: {problem}")
    found = pseudo_log_likelihoods(scorer, sentences, method, batch_tokens)
    return [_result(hub, sentence, each) for sentence, each in zip(sentences, found)]


def _result(hub: MaelmHubInterface, sentence: Sentence, values: NDArray[np.float64]) -> SentenceScore:
    tokens = [hub.tokenizer.decode([token]) or hub.dictionary[token] for token in sentence.tokens[sentence.scored]]
    return SentenceScore(float(values.sum()), float(values.mean()), tokens, values.tolist())


class CheckpointScorer:
    """A pretrained checkpoint of this package; see ``fairseq_maelm.scoring.likelihood.Scorer``.

    Tokens are hidden as in pretraining: dropped (MAE-LM), or replaced by <mask> (MLM).

    Raises:
        ValueError: the checkpoint cannot predict hidden tokens.
    """

    def __init__(self, hub: MaelmHubInterface) -> None:
        self._hub, self.model = hub, hub.model
        self._view: EncoderView = getattr(hub.task, "encoder_view", EncoderView())
        if hub.model.lm_head is None:
            raise ValueError(
                "the checkpoint has no LM head, as after fine-tuning: give one from pretraining or from prompting"
            )
        if hub.model.decoder is not None and hub.model.decoder.autoregressive:
            raise ValueError("the model's decoder reads from left to right, so it cannot predict hidden tokens")
        if self._view.masked_input in ("random", "random_kept"):
            raise ValueError(
                f"with --masked-input {self._view.masked_input} the encoder saw random tokens in place of hidden ones, "
                "so scores would not be reproducible: give a checkpoint with another --masked-input"
            )
        self.longest = hub.model.max_positions()
        self.mask, self.pad, self.precision = hub.model.mask_index, hub.dictionary.pad(), hub.model.precision

    def encode(self, texts: Sequence[str], with_words: bool) -> list[Sentence]:
        """See ``Scorer``."""
        first, last = self._hub.dictionary.bos(), self._hub.dictionary.eos()
        return [
            Sentence(np.concatenate([[first], tokens, [last]]), np.concatenate([[-1], words, [-1]]))
            for tokens, words in self._hub.tokenizer.encoder.encode_words(texts)
        ]

    def collate(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], asked: NDArray[np.bool_]
    ) -> dict[str, Any]:
        """See ``Scorer``."""
        return encoder_input_of_masks(tokens, lengths, tokens == self.mask, self._view, self.pad, asked)

    def log_probabilities(self, batch: dict[str, Any], target: Tensor) -> Tensor:
        """See ``Scorer``."""
        return target_log_probabilities(self.model, batch, target)
