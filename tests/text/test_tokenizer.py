"""Conversion of text with masks to tokens and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.vocabularies import KINDS

from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import Tokenizer, open_tokenizer
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


@pytest.mark.parametrize("kind", KINDS)
def test_special_symbols_in_text_are_text(kind, tmp_path):
    folder = KINDS[kind](tmp_path)
    dictionary = load_dictionary(str(folder))
    tokenizer = open_tokenizer(find_tokenizer([folder]), dictionary)
    text = "the <s> cat </s> <pad>"
    special = {dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.index("<mask>")}
    tokens = tokenizer.encode(text)
    assert not special & set(tokens)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        tokenizer.encode("<mask> \ud800")
    assert tokenizer.encode(text) == tokens, "also after an error"
    encoder, masked = tokenizer.encoder, f"{text} <mask>"
    assert not special & set(encoder.encode([masked])[0][:-1].tolist())
    assert not special & set(encoder.encode_words([masked])[0][0].tolist())


@given(
    st.lists(st.sampled_from(["the", "cat", "sat", "mat.", "ran", "river,", "house;", "garden!", "<mask>"]), min_size=1)
)
@settings(max_examples=50)
def test_round_trip(tokenizer, words):
    text = " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == text
