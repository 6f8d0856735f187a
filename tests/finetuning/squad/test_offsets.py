"""From text to pieces and back: every piece stands for known characters of the original text."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.squad.offsets import Aligner, token_span

from .world import ALIGNER, PROCESSOR, SYMBOLS, UNKNOWN

# What normalization makes longer, shorter, drops or splits, beside everything else that Unicode has.
UGLY = "aZ  \u200b\u3000\t\n\u00bd\ufb01\u2460\ufdfae\u0301\u2581\u0130\u00df\ud55c\u30ab\u3099\uff76\uff9e\x00\u00ad"
texts = st.text(
    alphabet=st.one_of(st.characters(), st.characters(categories=["Cs"]), st.sampled_from(UGLY + "\U0001f600\x85")),
    max_size=30,
)


def pieces_of(text: str) -> list[tuple[str, int, int]]:
    aligned = ALIGNER.align(text)
    symbols = [SYMBOLS[token] for token in aligned.tokens]
    return list(zip(symbols, aligned.begin.tolist(), aligned.end.tolist()))


def test_white_space_and_case_belong_to_no_piece():
    text = "  The\tCAT  sat"
    assert [text[begin:end] for _, begin, end in pieces_of(text) if begin < end] == ["The", "CAT", "sat"]
    assert [symbol for symbol, *_ in pieces_of(text)] == ["\u2581the", "\u2581cat", "\u2581sat"]


def test_characters_that_become_several_belong_to_each_piece_of_them():
    """One half is a digit, a slash and a digit; the ligature fi is two letters."""
    text = "a \u00bd mat"
    aligned = ALIGNER.align(text)
    half = [number for number in range(len(aligned.tokens)) if (aligned.begin[number], aligned.end[number]) == (2, 3)]
    assert len(half) >= 1
    first, last = token_span(aligned.begin, aligned.end, 2, 3)
    assert text[aligned.begin[first] : aligned.end[last]] == "\u00bd"


def test_characters_that_become_one_belong_to_one_piece():
    text = "e\u0301 mat"
    aligned = ALIGNER.align(text)
    assert (0, 2) in zip(aligned.begin.tolist(), aligned.end.tolist())


def test_a_boundary_inside_a_piece_takes_the_whole_piece():
    text = "the dogs"
    aligned = ALIGNER.align(text)
    first, last = token_span(aligned.begin, aligned.end, 1, 5)
    assert text[aligned.begin[first] : aligned.end[last]].startswith("the d")


def test_nothing_but_white_space_has_no_pieces():
    for text in ("", "   ", "\t\u3000\n"):
        aligned = ALIGNER.align(text)
        assert not (aligned.begin < aligned.end).any()
        assert token_span(aligned.begin, aligned.end, 0, len(text)) is None


def test_a_dictionary_of_another_model_is_refused():
    with pytest.raises(ValueError, match="is not in dict.txt"):
        Aligner.from_symbols(PROCESSOR, SYMBOLS[:-1], UNKNOWN)


def test_tokens_are_the_same_with_and_without_offsets():
    texts = ["The cats ran.", "", "\u00bd river \ud800"]
    for text, tokens in zip(texts, ALIGNER.tokens(texts)):
        assert np.array_equal(tokens, ALIGNER.align(text).tokens)


@given(texts)
@example("\x85")
@example("\u2581 \u2581a")
@example("caf\u00e9 \u200b zero\u200b")
@settings(max_examples=500, deadline=None)
def test_any_run_of_pieces_is_a_substring(text):
    begin, end = (each.astype(int) for each in ALIGNER.align(text)[1:])
    assert (np.diff(begin) >= 0).all() and (np.diff(end) >= 0).all()
    assert (begin >= 0).all() and (end <= len(text)).all()
    own = np.flatnonzero(begin < end)
    # Pieces with characters are separated by nothing but white space and what the normalizer drops; none are lost.
    assert all(text[begin[number] : end[number]].strip() for number in own)
    for first in own:
        for last in own[own >= first]:
            assert begin[first] < end[last]


@given(texts, st.integers(0, 30), st.integers(1, 30))
@settings(max_examples=500, deadline=None)
def test_an_answer_survives_up_to_whole_pieces(text, first, length):
    """What comes back holds the answer, and not one piece more than the answer touches."""
    begin, end = ALIGNER.align(text)[1:]
    last = min(first + length, len(text))
    span = token_span(begin, end, first, last)
    touched = [number for number in range(len(begin)) if begin[number] < min(last, end[number]) and end[number] > first]
    touched = [number for number in touched if begin[number] < end[number]]
    if span is None:
        assert not touched
    else:
        assert (span[0], span[1]) == (touched[0], touched[-1])
        back = (int(begin[span[0]]), int(end[span[1]]))
        kept = [place for place in range(first, last) if any(begin[n] <= place < end[n] for n in touched)]
        assert all(back[0] <= place < back[1] for place in kept)


@given(
    st.lists(st.sampled_from(["The", "cats", "RAN", "river,", "\u00bd", "Stra\u00dfe", "42"]), min_size=1, max_size=8)
)
@settings(max_examples=100, deadline=None)
def test_answers_of_whole_words_come_back_exactly(words):
    text = "  ".join(words)
    begin, end = ALIGNER.align(text)[1:]
    for number in range(len(words)):
        start = sum(len(word) + 2 for word in words[:number])
        span = token_span(begin, end, start, len(text))
        assert span is not None
        assert text[begin[span[0]] : end[span[1]]] == text[start:]
