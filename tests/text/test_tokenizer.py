"""Conversion of text with masks to tokens and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.vocabularies import KINDS

from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import Tokenizer
from fairseq_maelm.text.vocabulary import MODEL_FILE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = KINDS["sentencepiece"](tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer(str(folder / MODEL_FILE), load_dictionary(str(folder)))


def symbols(tokenizer, text):
    return [tokenizer.dictionary[token] for token in tokenizer.encode(text)]


def test_masks_by_hand(tokenizer):
    the, cat, mask, stop = "\u2581the", "\u2581cat", "<mask>", "."
    assert symbols(tokenizer, "The cat.") == [the, cat, stop]
    assert symbols(tokenizer, "the <mask>.") == [the, mask, stop], "text after a mask continues the sentence"
    assert symbols(tokenizer, "<mask> cat") == [mask, cat]
    assert symbols(tokenizer, "the<mask><mask>  cat") == [the, mask, mask, cat]
    assert symbols(tokenizer, "<mask>") == [mask]
    assert symbols(tokenizer, "") == []


def test_special_symbols_in_text_are_text(tokenizer):
    assert not {0, 1, 2} & set(tokenizer.encode("the <s> cat </s> <pad>"))


@given(
    st.lists(st.sampled_from(["the", "cat", "sat", "mat.", "ran", "river,", "house;", "garden!", "<mask>"]), min_size=1)
)
@settings(max_examples=150)
def test_round_trip(tokenizer, words):
    text = " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == text
