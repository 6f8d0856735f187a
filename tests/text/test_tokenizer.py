"""Text to tokens and back, around masks as within a sentence."""

import io

import pytest
import sentencepiece
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.text.tokenizer import Tokenizer

TEXT = [
    "the cat sat on the mat.",
    "the dogs ran to the river and the cats ran away.",
    "a house, a garden, a river and a mat!",
    "over the river ran the dog; the house stood still.",
] * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        model_type="bpe",
        vocab_size=80,
        normalization_rule_name="nmt_nfkc_cf",
        minloglevel=2,
    )
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    dictionary = Dictionary()
    for piece in range(processor.get_piece_size()):
        if not (processor.is_unknown(piece) or processor.is_control(piece)):
            dictionary.add_symbol(processor.id_to_piece(piece))
    dictionary.add_symbol("<mask>")
    return Tokenizer(str(path), dictionary)


def symbols(tokenizer, text):
    return [tokenizer.dictionary[token] for token in tokenizer.encode(text)]


def test_masks_by_hand(tokenizer):
    the, cat, mask, stop = "\u2581the", "\u2581cat", "<mask>", "."
    assert symbols(tokenizer, "The cat.") == [the, cat, stop]
    assert symbols(tokenizer, "the <mask>.") == [the, mask, stop], "text after a mask goes on, it does not start anew"
    assert symbols(tokenizer, "<mask> cat") == [mask, cat]
    assert symbols(tokenizer, "the<mask><mask>  cat") == [the, mask, mask, cat]
    assert symbols(tokenizer, "<mask>") == [mask]
    assert symbols(tokenizer, "") == []


def test_special_symbols_in_text_are_text(tokenizer):
    assert not {0, 1, 2} & set(tokenizer.encode("the <s> cat </s> <pad>"))


@given(st.lists(st.sampled_from(["the", "cat", "sat", "on", "mat.", "ran", "river,", "house;", "garden!"]), min_size=1))
@settings(max_examples=100, deadline=None)
def test_round_trip(tokenizer, words):
    text = " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.sampled_from(["the", "cat", "<mask>", "mat."]), min_size=1))
@settings(max_examples=100, deadline=None)
def test_round_trip_with_masks(tokenizer, words):
    text = " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == text
