"""Every token is aligned with characters of the original text."""

from pathlib import Path

import numpy as np
import pytest
from corpus.texts import train_model
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from text.vocabularies import KINDS, TEXT

from fairseq_maelm.finetuning.squad.prepare import token_span
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, FairseqEncoder, TextEncoder, load_sentencepiece, open_encoder

# Characters that normalization lengthens, shortens, drops or splits.
UGLY = "aZ  \u200b\u3000\t\n\u00bd\ufb01\u2460\ufdfae\u0301\u2581\u0130\u00df\ud55c\u30ab\u3099\uff76\uff9e\x00\u00ad"
texts = st.text(
    alphabet=st.one_of(st.characters(), st.characters(categories=["Cs"]), st.sampled_from(UGLY + "\U0001f600\x85")),
    max_size=30,
)
# The encoder is the same for all examples.
many = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=KINDS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return open_encoder(KINDS[request.param](tmp_path_factory.mktemp("vocabulary")))


def substrings(encoder: TextEncoder, text: str) -> list[str]:
    """Return the substrings of all tokens that have characters."""
    _, begin, end = encoder.encode_with_offsets(text)
    return [text[first:last] for first, last in zip(begin, end) if first < last]


def test_white_space_and_case_belong_to_no_token(encoder: TextEncoder) -> None:
    parts = substrings(encoder, "  The\tcat  sat\u3000on")
    assert "".join(parts) == "Thecatsaton"
    assert parts == [part.strip() for part in parts]


def test_characters_that_become_several_belong_to_each_token_of_them(encoder: TextEncoder) -> None:
    """A half sign becomes a digit, a slash and a digit; bytes are parts of a character."""
    text = "a \u00bd mat"
    _, begin, end = encoder.encode_with_offsets(text)
    assert (2, 3) in zip(begin.tolist(), end.tolist())
    first, last = token_span(begin, end, 2, 3)  # type: ignore[misc]
    assert text[begin[first] : end[last]] == "\u00bd"


@pytest.mark.parametrize("character", ["e\u0301", "\u30ab\u3099", "\uff76\uff9e"])
def test_characters_that_become_one_stay_together(encoder: TextEncoder, character: str) -> None:
    text = f"{character} mat"
    _, begin, end = encoder.encode_with_offsets(text)
    whole = token_span(begin, end, 0, 2)
    assert whole is not None and text[begin[whole[0]] : end[whole[1]]] == character


def test_nothing_but_white_space_has_no_characters(encoder: TextEncoder) -> None:
    for text in ("", "   ", "\t\u3000\n"):
        _, begin, end = encoder.encode_with_offsets(text)
        assert not (begin < end).any()
        assert token_span(begin, end, 0, len(text)) is None


def test_tokens_are_the_same_with_and_without_offsets(encoder: TextEncoder) -> None:
    cases = ["The cats ran.", "", "\u00bd river \ufffd", "<s> <mask> </s>"]
    for text, tokens in zip(cases, encoder.encode(cases)):
        assert tokens[-1] == 2 and np.array_equal(tokens[:-1], encoder.encode_with_offsets(text).tokens)
    assert np.array_equal(encoder.encode_with_offsets("\ud800")[0], encoder.encode_with_offsets("\ufffd")[0])


def test_an_encoder_names_its_files(encoder: TextEncoder) -> None:
    assert [path.name for path in encoder.files][0] == DICTIONARY_FILE and len(encoder.files) == 2
    lines = encoder.files[0].read_text(encoding="utf-8").splitlines()
    assert encoder.dictionary_size == 4 + len(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_of_another_vocabulary_is_refused(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path) / DICTIONARY_FILE
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="do not\\s+belong together"):
        open_encoder(tmp_path)


def test_byte_fallback_is_refused() -> None:
    encoder = FairseqEncoder(load_sentencepiece(train_model(TEXT, 400, byte_fallback=True)))
    with pytest.raises(ValueError, match=r"not in the text \(byte fallback\?\)"):
        encoder.encode_with_offsets("the \u6f22 cat")


@given(text=texts)
@example("\x85")
@example("\u2581 \u2581a")
@example("caf\u00e9 \u200b zero\u200b")
@many
def test_any_run_of_tokens_is_a_substring(encoder: TextEncoder, text: str) -> None:
    begin, end = (each.astype(int) for each in encoder.encode_with_offsets(text)[1:])
    assert (np.diff(begin) >= 0).all() and (np.diff(end) >= 0).all()
    own = np.flatnonzero(begin < end)
    assert (begin[own] >= 0).all() and (end <= len(text)).all()
    # Every token with characters has more than white space, and runs of tokens are not empty.
    assert all(text[begin[number] : end[number]].strip() for number in own)
    for first in own:
        assert (begin[first] < end[own[own >= first]]).all()


@given(text=texts, first=st.integers(0, 30), length=st.integers(1, 30))
@many
def test_an_answer_survives_up_to_whole_tokens(encoder: TextEncoder, text: str, first: int, length: int) -> None:
    """The span that is found holds the answer, and only tokens that the answer touches."""
    begin, end = encoder.encode_with_offsets(text)[1:]
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
