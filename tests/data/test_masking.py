"""Masking: the draw is a function of (seed, epoch, index) and has the promised distribution."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scheme_of

from fairseq_maelm.data.masking import MaskingScheme, draw_masks, mask_counts
from fairseq_maelm.data.random_bits import random_bits

VOCABULARY = 40
MASK = VOCABULARY - 1
SPECIAL = np.isin(np.arange(VOCABULARY), [0, 1, 2, 3, MASK])
STARTS = (np.arange(VOCABULARY) % 3 == 0) | SPECIAL


def full_batch(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Padded sequences <int64>[B, T] of real tokens between <s> and </s>, and their lengths."""
    generator = np.random.default_rng(seed)
    tokens = np.ones((len(lengths), max(lengths)), dtype=np.int64)
    for row, length in zip(tokens, lengths):
        row[:length] = generator.integers(4, MASK, length)
        row[0] = 0
        if length > 2:
            row[length - 1] = 2
    return tokens, np.array(lengths)


def draw(scheme: MaskingScheme, lengths: list[int], indices=None, seed=1, epoch=1):
    tokens, sizes = full_batch(lengths)
    indices = np.arange(len(lengths)) if indices is None else np.array(indices)
    return tokens, sizes, draw_masks(scheme, tokens, sizes, indices, seed, epoch)


probabilities = st.floats(0.001, 0.999)
lengths = st.lists(st.integers(2, 60), min_size=1, max_size=6)


@settings(max_examples=60)
@given(lengths, probabilities, st.integers(0, 2**40), st.integers(1, 50), st.booleans(), st.booleans())
def test_promises_for_any_batch(sizes, probability, seed, epoch, protect, whole_words):
    scheme = scheme_of(
        mask_prob=probability, protected=SPECIAL if protect else None, word_starts=STARTS if whole_words else None
    )
    tokens, _, result = draw(scheme, sizes, seed=seed, epoch=epoch)
    inside = np.arange(tokens.shape[1])[None, :] < np.array(sizes)[:, None]
    assert result.predicted.any(), "a batch without predictions"
    assert not result.predicted[~inside].any(), "padding is predicted"
    assert (inside & ~result.masked).any(axis=1).all(), "a sequence of which the encoder sees nothing"
    assert (result.tokens == tokens).all() and (result.masked == result.predicted).all()
    if protect and max(sizes) > 2:
        assert not SPECIAL[tokens[result.predicted]].any()


@settings(max_examples=40)
@given(st.integers(3, 600), probabilities, st.integers(0, 2**40), st.booleans(), st.sampled_from([None, STARTS]))
def test_the_number_of_masks_is_the_rounded_rate_of_the_length(length, probability, seed, protect, starts):
    """Whatever the sequences hold: special tokens, or words of several tokens."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, MASK, (20, length))
    tokens[:, : 2 * length // 3] = generator.choice([4, 5, 6], (20, 2 * length // 3))
    sizes = np.full(20, length)
    scheme = scheme_of(mask_prob=probability, protected=SPECIAL if protect else None, word_starts=starts)
    predicted = draw_masks(scheme, tokens, sizes, np.arange(20), seed, 1).predicted
    expected = min(max(math.floor(probability * length + 0.5), 1), length - 1)
    eligible = ~SPECIAL[tokens] if protect else np.ones(tokens.shape, dtype=bool)
    counts = np.minimum(expected, eligible.sum(axis=1))
    if starts is None:
        assert (predicted.sum(axis=1) == counts).all()
        return
    words = np.cumsum(starts[tokens] | ~eligible | np.roll(~eligible, 1, axis=1), axis=1)
    for row in range(20):
        chosen = np.unique(words[row, predicted[row]])
        left = [np.sum(words[row, eligible[row]] == word) for word in set(words[row, eligible[row]]) - set(chosen)]
        assert (predicted[row] == (eligible[row] & np.isin(words[row], chosen))).all() or predicted.sum() == 1
        assert predicted[row].sum() <= counts[row] < predicted[row].sum() + min(left, default=length)


def test_the_mean_rate_is_the_wanted_one():
    """Over lengths, the roundings cancel out; one masked token of a very short sequence is many."""
    lengths = np.arange(10, 513)
    for rate in (0.15, 0.3, 0.4):
        assert abs(mask_counts(rate, lengths).sum() / lengths.sum() / rate - 1) < 0.001
    assert mask_counts(0.15, np.arange(1, 11)).tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("index", [1234, 1235, 1236, 1237])
def test_draw_is_the_one_of_the_plain_hash(index):
    """The smallest hashes of (seed, epoch, index, position) are chosen."""
    seed, epoch, length = 2**63 + 5, 3, 100
    gamma, word = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
        return x ^ (x >> 31)

    def row(stream: int) -> int:
        key = seed
        for part in (epoch, stream):
            key = mix((key * gamma + part + gamma) & word)
        return mix((key + (index + 1) * gamma) & word)

    bits = [mix((mix(row(0)) + (position + 1) * gamma) & word) for position in range(length)]
    assert random_bits(seed, epoch, np.array([index]), 0, length)[0].tolist() == bits
    _, _, result = draw(scheme_of(mask_prob=0.205), [length], indices=[index], seed=seed, epoch=epoch)
    smallest = sorted(range(length), key=lambda position: (bits[position] >> 16, position))[:21]
    assert np.flatnonzero(result.predicted[0]).tolist() == sorted(smallest)


def test_expected_count_and_equal_chances():
    """In 200,000 tokens, the rate is within 1 %, positions are uniform, and neighbors are independent."""
    length, rows = 100, 2000
    _, _, result = draw(scheme_of(mask_prob=0.15), [length] * rows)
    assert (result.predicted.sum(axis=1) == 15).all()
    per_position = result.predicted.mean(axis=0)
    assert np.abs(per_position - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / rows)
    both = (result.predicted[:, 1:] & result.predicted[:, :-1]).mean()
    assert abs(both / (0.15 * 14 / 99) - 1) < 0.05


def test_bert_treatment_fractions():
    scheme = scheme_of(mask_prob=0.5, leave_unmasked_prob=0.1, random_token_prob=0.1)
    tokens, _, result = draw(scheme, [200] * 1000)
    predicted = result.predicted
    shown = predicted & ~result.masked
    replaced = shown & (result.tokens != tokens)
    assert abs((result.masked.sum() / predicted.sum()) - 0.8) < 0.01
    # One replacement in 34 is the token itself.
    assert abs(replaced.sum() / predicted.sum() - 0.1 * (1 - 1 / 35)) < 0.005
    assert (result.tokens[~predicted] == tokens[~predicted]).all()
    assert set(np.unique(result.tokens[replaced])) == set(range(4, MASK)), "a special token, or not all real ones"


def test_whole_words_by_hand():
    """Words [4], [6 7 7], [8 9] between <s> and </s>: pieces 7 and 9 continue."""
    starts = np.ones(VOCABULARY, dtype=bool)
    starts[[7, 9]] = False
    tokens = np.array([[0, 4, 6, 7, 7, 8, 9, 2]])
    scheme = scheme_of(mask_prob=0.4, word_starts=starts)
    words = [[0], [1], [2, 3, 4], [5, 6], [7]]
    seen = set()
    for index in range(200):
        result = draw_masks(scheme, tokens, np.array([8]), np.array([index]), seed=1, epoch=1)
        chosen = [word for word in words if result.predicted[0, word].any()]
        assert all(result.predicted[0, word].all() for word in chosen), "half a word"
        assert result.predicted.sum() == 3  # of 8 tokens 3.2, which all orders of words fill up
        seen.update(map(tuple, chosen))
    assert seen == set(map(tuple, words)), "a word that is never masked"


def test_word_cut_by_the_block_is_still_one_unit():
    """The rest of a word at the start of a block is masked as a whole."""
    starts = np.ones(VOCABULARY, dtype=bool)
    starts[7] = False
    scheme = scheme_of(mask_prob=0.4, word_starts=starts, protected=SPECIAL)
    for index in range(50):
        result = draw_masks(scheme, np.array([[0, 7, 7, 5, 2]]), np.array([5]), np.array([index]), 1, 1)
        assert result.predicted[0, 1] == result.predicted[0, 2]
        assert result.predicted[0, 1] != result.predicted[0, 3]


def test_extreme_probabilities():
    """One token is predicted, and one stays visible."""
    _, _, result = draw(scheme_of(mask_prob=1e-9), [5, 9, 7])
    assert result.predicted.sum(axis=1).tolist() == [1, 1, 1]
    _, _, result = draw(scheme_of(mask_prob=0.999999), [5, 2, 3])
    assert result.predicted.sum(axis=1).tolist() == [4, 1, 2]


def test_batches_with_nothing_to_choose():
    result = draw_masks(
        scheme_of(mask_prob=0.5, protected=SPECIAL), np.array([[0, 2]]), np.array([2]), np.array([0]), 1, 1
    )
    assert result.predicted.tolist() == [[False, True]], "protected tokens only"
    with pytest.raises(ValueError, match="two tokens"):
        draw_masks(scheme_of(), np.array([[0]]), np.array([1]), np.array([0]), 1, 1)
