"""Random choice of the positions to predict, for a whole batch at once, in numpy."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairseq_maelm.data.random_bits import random_bits, row_bits, uniform

# Independent streams of random numbers for one (seed, epoch, index).
_PRIORITY, _ORDER, _TREATMENT, _REPLACEMENT, _STAYING = range(5)

# The lowest 16 bits of a priority are the position, so that all priorities of a sequence differ.
MAX_LENGTH = 1 << 16
_LAST = np.iinfo(np.uint64).max


def order_draws(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Draw <float64>[B] in [0, 1), one per sequence, for the order of an epoch."""
    return uniform(row_bits(seed, epoch, indices, _ORDER))


def mask_counts(rate: float, lengths: np.ndarray) -> np.ndarray:
    """Return the number of tokens to predict <int64>[B] in sequences of lengths n <int64>[B]: rate * n, rounded.

    It depends on nothing else, so that batches of equal lengths have equal shapes. Each sequence of two or more tokens
    has at least one, and one token that stays visible.
    """
    counts = np.floor(rate * lengths + 0.5).astype(np.int64)
    return np.minimum(np.maximum(counts, 1), lengths - 1)


@dataclass(frozen=True)
class MaskingScheme:
    """Probabilities and token classes of masking."""

    mask_prob: float  # fraction of tokens to predict, in (0, 1)
    real_tokens: np.ndarray  # <int64>[R] token ids for random replacements: no special symbols, no <mask>
    leave_unmasked_prob: float = 0.0  # fraction of predicted tokens that stay in place, visible to the encoder
    random_token_prob: float = 0.0  # fraction of predicted tokens that are replaced by a random real token
    word_starts: np.ndarray | None = None  # <bool>[V] tokens that begin a word; None masks single tokens
    word_kinds: np.ndarray | None = None  # <uint8>[2, V] see ``text.dictionary.WordRule``; None: only these begin words
    protected: np.ndarray | None = None  # <bool>[V] tokens that are never chosen; None if all may be

    def __post_init__(self) -> None:
        if self.leave_unmasked_prob + self.random_token_prob > 1.0:
            raise ValueError(
                f"--leave-unmasked-prob ({self.leave_unmasked_prob}) and --random-token-prob "
                f"({self.random_token_prob}) are fractions of the same tokens: their sum must not exceed 1"
            )


class MaskDraw(NamedTuple):
    """The masks drawn for a batch of full sequences."""

    predicted: np.ndarray  # <bool>[B, T] True at positions to predict
    masked: np.ndarray  # <bool>[B, T] True at predicted tokens that are neither left in place nor replaced
    tokens: np.ndarray  # <int64>[B, T] after random replacement; masked positions hold the original token


def draw_masks(
    scheme: MaskingScheme, tokens: np.ndarray, lengths: np.ndarray, indices: np.ndarray, seed: int, epoch: int
) -> MaskDraw:
    """Choose the positions to predict in a batch of sequences <int64>[B, T], padded on the right with any value.

    Their number depends on the length of a sequence alone; see ``mask_counts``. It is lower where too few tokens may be
    chosen, or if no word is short enough to complete it. fairseq and the authors' code round it at random. If the batch
    has no chosen token, one token of the longest sequence is chosen.

    ``lengths`` <int64>[B] are from 1 to T. Random numbers depend on ``seed``, ``epoch`` (from 1) and ``indices``
    <int64>[B] of the sequences in their dataset.
    """
    length = tokens.shape[1]
    if length > MAX_LENGTH:
        raise ValueError(f"masking takes sequences of up to {MAX_LENGTH} tokens, not {length}")
    inside = np.arange(length)[None, :] < lengths[:, None]
    eligible = inside if scheme.protected is None else inside & ~scheme.protected[tokens]
    priority = random_bits(seed, epoch, indices, _PRIORITY, length)
    priority &= ~np.uint64(MAX_LENGTH - 1)
    priority |= np.arange(length, dtype=np.uint64)
    counts = np.minimum(mask_counts(scheme.mask_prob, lengths), np.count_nonzero(eligible, axis=1))
    first = None
    if scheme.word_starts is None:
        # In rows with no tokens to choose, the threshold is meaningless.
        predicted = _smallest(priority, eligible, counts) & eligible & (counts[:, None] > 0)
    else:
        starts = _word_starts(scheme, tokens, eligible)
        # <int64>[B, T] the first position of each token's word: a word uses the random numbers of its first token.
        first = np.maximum.accumulate(np.where(starts | ~eligible, np.arange(length), 0), axis=1)
        predicted = _whole_words(np.where(starts, priority, _LAST), eligible, counts, first)
    if not predicted.any():
        predicted = _one_prediction(eligible, inside, lengths, priority)
    return _treat(scheme, tokens, predicted, first, seed, epoch, indices)


def _smallest(priority: np.ndarray, eligible: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return <bool>[B, T], True at the ``counts`` tokens of smallest priority in each row; undefined at others."""
    ranked = priority if eligible.all() else np.where(eligible, priority, _LAST)
    ranks = np.maximum(counts - 1, 0)
    # Only the smallest priorities need sorting; if all rows have the same count, not even these.
    most = int(ranks.max())
    ranked = np.partition(ranked, most, axis=1)[:, : most + 1]
    if ranks.min() < most:
        ranked.sort(axis=1)
    return priority <= np.take_along_axis(ranked, ranks[:, None], axis=1)


def _whole_words(priority: np.ndarray, eligible: np.ndarray, counts: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return <bool>[B, T], True in words in the order of priority, without those that exceed the rest of ``counts``."""
    sizes = np.zeros_like(first)
    np.add.at(sizes, (np.nonzero(eligible)[0], first[eligible]), 1)
    order = np.argsort(priority, axis=1)
    sizes = np.take_along_axis(sizes, order, axis=1)
    chosen, rest = np.zeros_like(eligible), counts[:, None]
    while (waiting := np.where(chosen | (sizes > rest), 0, sizes)).any():
        chosen |= (waiting > 0) & (np.cumsum(waiting, axis=1) <= rest)
        rest = counts[:, None] - np.where(chosen, sizes, 0).sum(axis=1, keepdims=True)
    predicted = np.empty_like(chosen)
    np.put_along_axis(predicted, order, chosen, axis=1)
    return np.take_along_axis(predicted, first, axis=1)


def _word_starts(scheme: MaskingScheme, tokens: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """Return <bool>[B, T], True at the first eligible token of every word."""
    assert scheme.word_starts is not None
    starts = scheme.word_starts[tokens]
    if scheme.word_kinds is not None:
        begin, end = scheme.word_kinds
        starts[:, 1:] |= (begin[tokens[:, 1:]] & end[tokens[:, :-1]]) == 0
    # A word cut by the block's start or by a protected token counts from its first eligible token.
    follows = np.zeros_like(eligible)
    follows[:, 1:] = eligible[:, :-1]
    return eligible & (starts | ~follows)


def _one_prediction(eligible: np.ndarray, inside: np.ndarray, lengths: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """Return <bool>[B, T] with a single True: a batch without predictions would have neither loss nor gradient."""
    row = int(np.argmax(lengths))
    if lengths[row] < 2:
        raise ValueError(
            "masking needs a sequence with at least two tokens, one to mask and one to see, but this batch has none: "
            "give longer texts"
        )
    candidates = eligible[row].copy()
    candidates[0] = False
    if not candidates.any():
        # All tokens are protected: choose one anyway, since the batch needs a prediction.
        candidates = inside[row].copy()
        candidates[0] = False
    predicted = np.zeros_like(eligible)
    predicted[row, np.argmin(np.where(candidates, priority[row], _LAST))] = True
    return predicted


def _treat(
    scheme: MaskingScheme,
    tokens: np.ndarray,
    predicted: np.ndarray,
    first: np.ndarray | None,
    seed: int,
    epoch: int,
    indices: np.ndarray,
) -> MaskDraw:
    """Mask each predicted token, leave it in place, or replace it at random."""
    if scheme.leave_unmasked_prob == 0.0 and scheme.random_token_prob == 0.0:
        return MaskDraw(predicted, predicted, tokens)
    length = tokens.shape[1]
    treatment = uniform(random_bits(seed, epoch, indices, _TREATMENT, length))
    if first is not None:
        treatment = np.take_along_axis(treatment, first, axis=1)
    left = predicted & (treatment < scheme.leave_unmasked_prob)
    seen = treatment < scheme.leave_unmasked_prob + scheme.random_token_prob
    replaced = predicted & seen & ~left
    random = replacements(scheme.real_tokens, indices, seed, epoch, length)
    return MaskDraw(predicted, predicted & ~seen, np.where(replaced, random, tokens))


def replacements(real_tokens: np.ndarray, indices: np.ndarray, seed: int, epoch: int, length: int) -> np.ndarray:
    """Draw token ids <int64>[B, length] uniformly from ``real_tokens`` <int64>[R]."""
    return real_tokens[random_bits(seed, epoch, indices, _REPLACEMENT, length) % np.uint64(len(real_tokens))]


def keep_fraction(fraction: float, indices: np.ndarray, seed: int, epoch: int, length: int) -> np.ndarray:
    """Draw <bool>[B, length], True with probability ``fraction``; a larger fraction only adds Trues."""
    return uniform(random_bits(seed, epoch, indices, _STAYING, length)) < fraction
