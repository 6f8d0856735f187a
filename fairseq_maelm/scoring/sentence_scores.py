"""Sentence scores from a checkpoint opened through the hub interface."""

from collections.abc import Sequence
from typing import NamedTuple

from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.scoring.likelihood import CheckpointScorer, pseudo_log_likelihoods
from fairseq_maelm.scoring.reading import METHODS
from fairseq_maelm.text.cleaning import checked_texts, clean_text


class SentenceScore(NamedTuple):
    """The pseudo-log-likelihood of a sentence, in nats.

    Attributes:
        sum: sum over the tokens.
        per_token: mean over the tokens.
        tokens: the tokens as text, without <s> and </s>.
        log_probabilities: log-probability of each token.
    """

    sum: float
    per_token: float
    tokens: list[str]
    log_probabilities: list[float]


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
