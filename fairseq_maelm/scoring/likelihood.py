"""Pseudo-log-likelihoods: each token of a sentence is predicted from the others, for many sentences at a time.

Salazar et al. (2020, "Masked Language Model Scoring") hide one token at a time. Kauf and Ivanova (2023, "A Better Way
to Do Masked Language Model Scoring") also hide the rest of the token's word, which would give the token away.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.models.batched_inference import Places, predict
from fairseq_maelm.modules.autocast import computing_in

METHODS = ("original", "within_word_l2r")


class Sentence(NamedTuple):
    """A tokenized text."""

    tokens: NDArray[np.int64]  # <int64>[n], special symbols included
    words: NDArray[np.int64]  # <int64>[n] number of each token's word, -1 for symbols that are not scored

    @property
    def scored(self) -> NDArray[np.int64]:
        """Return the places of the tokens that are scored."""
        return np.flatnonzero(self.words >= 0)


class Scorer(Protocol):
    """The interface through which masked language models of all kinds are scored."""

    model: nn.Module
    longest: int  # largest number of tokens in a sentence, special symbols included
    mask: int
    pad: int
    precision: str  # one of ``PRECISIONS``

    def encode(self, texts: Sequence[str], with_words: bool) -> list[Sentence]:
        """Tokenize texts; without ``with_words`` the words may be arbitrary."""

    def collate(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], asked: NDArray[np.bool_]) -> Any:
        """Make the model's input from right-padded sequences <int64>[B, T] with masks, one of which is asked for."""

    def log_probabilities(self, batch: Any, target: Tensor) -> Tensor:
        """Return log-probabilities <float32>[B, K] of the targets <int64>[B, K] at the masks asked for."""


def refusal(scorer: Scorer, sentence: Sentence) -> str:
    """Return the reason why a sentence cannot be scored, or an empty string if it can be."""
    if not len(sentence.scored):
        return "the text has no tokens to score"
    if len(sentence.tokens) > scorer.longest:
        return f"the text has {len(sentence.tokens)} tokens and the model has {scorer.longest} positions: split it"
    return ""


# A place in a sequence, the end of the masks that begin there, and the bytes of the sequence with its masks. Sequences
# with the same context are computed once: the two of a minimal pair whose difference is hidden, and all of two equal
# sentences, so that their scores are equal to the last bit.
_Context = tuple[int, int, bytes]


def pseudo_log_likelihoods(
    scorer: Scorer, sentences: Sequence[Sentence], method: str = METHODS[0], batch_tokens: int = 4096
) -> list[NDArray[np.float64]]:
    """Return the log-probabilities, in nats, of all scored tokens of each sentence.

    Args:
        scorer: the model.
        sentences: from the scorer's ``encode``.
        method: one of ``METHODS``.
        batch_tokens: number of tokens in a batch.

    Raises:
        ValueError: a log-probability is not finite.
    """
    asked: list[list[tuple[_Context, int]]] = []
    targets: dict[_Context, dict[int, float]] = {}
    for sentence in sentences:
        asked.append([])
        for place, end in zip(sentence.scored.tolist(), hidden_ends(sentence, method).tolist()):
            shown = sentence.tokens.copy()
            shown[place:end] = scorer.mask
            context, target = (place, end, shown.tobytes()), int(sentence.tokens[place])
            targets.setdefault(context, {})[target] = 0.0
            asked[-1].append((context, target))
    _fill(scorer, targets, batch_tokens)
    found = [np.array([targets[context][target] for context, target in each]) for each in asked]
    if not all(np.isfinite(each).all() for each in found):
        raise ValueError("the model's probabilities are not finite numbers: its weights are damaged")
    return found


def hidden_ends(sentence: Sentence, method: str) -> NDArray[np.int64]:
    """Return for each scored token the place after the last token that is hidden with it."""
    scored = sentence.scored
    if method != "within_word_l2r":
        return scored + 1
    # A word ends where the next token belongs to another word.
    ends = np.append(np.flatnonzero(np.diff(sentence.words)) + 1, len(sentence.words))
    return ends[np.searchsorted(ends, scored, side="right")]


def _fill(scorer: Scorer, targets: dict[_Context, dict[int, float]], batch_tokens: int) -> None:
    # Among contexts of one length, those with equally many masks are adjacent, so that dropping masks needs no padding.
    contexts = sorted(targets, key=lambda context: context[1] - context[0])
    sequences = [np.frombuffer(shown, dtype=np.int64) for _, _, shown in contexts]
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)

    def collate(places: Places) -> tuple[Any, Tensor]:
        tokens = pad_rows([sequences[place] for place in places], lengths[places], scorer.pad)
        asked = np.zeros(tokens.shape, dtype=bool)
        asked[np.arange(len(places)), [contexts[place][0] for place in places]] = True
        wanted = [np.array(list(targets[contexts[place]])) for place in places]
        # Contexts with fewer targets than others are padded with symbol 0, whose result is ignored.
        return scorer.collate(tokens, lengths[places], asked), torch.from_numpy(
            pad_rows(wanted, np.array(list(map(len, wanted))), 0)
        )

    def forward(batch: tuple[Any, Tensor]) -> list[list[float]]:
        return scorer.log_probabilities(*batch).double().tolist()

    # One context manager for all batches, so that weights are cast once.
    with computing_in(scorer.precision, next(scorer.model.parameters()), training=False):
        rows = predict(scorer.model, lengths, collate, forward, batch_tokens)
    for context, row in zip(contexts, rows):
        targets[context] = dict(zip(targets[context], row))
