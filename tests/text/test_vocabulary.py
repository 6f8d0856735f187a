"""Vocabularies: size, dictionary, ids, and models that are refused."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus.texts import flat, make_documents, train_model
from fairseq.data import Dictionary

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.interop.export.tokenizer import build_tokenizer
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import (
    PRESETS,
    FairseqEncoder,
    dictionary_symbols,
    dictionary_text,
    load_sentencepiece,
    train_sentencepiece,
)

LINES = flat(make_documents(200))


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_sentencepiece(LINES, 150, "nmt_nfkc_cf", 1.0)


def fairseq_dictionary(processor: Any, folder: Path) -> Dictionary:
    (folder / "dict.txt").write_text(dictionary_text(processor), encoding="utf-8")
    return Dictionary.load(str(folder / "dict.txt"))


def encoded_by_spelling(processor: Any, dictionary: Dictionary, text: str) -> list[int]:
    """Return what fairseq-preprocess stores for the output of spm_encode."""
    line = " ".join(processor.encode(text, out_type=str))
    return dictionary.encode_line(line, add_if_not_exist=False).tolist()


@pytest.mark.parametrize(("preset", "total"), [("uncased", 32_768), ("cased", 64_000)])
def test_presets_give_the_papers_totals(preset: str, total: int) -> None:
    """sentencepiece's three special pieces are replaced by fairseq's four symbols and <mask>."""
    assert PRESETS[preset].size - 3 + 4 + 1 == total


def test_a_trained_vocabulary_has_the_promised_total(model: bytes, tmp_path: Path) -> None:
    processor = load_sentencepiece(model)
    dictionary = fairseq_dictionary(processor, tmp_path)
    dictionary.add_symbol("<mask>")
    assert len(dictionary) == 150 + 2
    assert FairseqEncoder(processor).dictionary_size == 150 + 1


@pytest.mark.parametrize(("size", "problem", "beyond"), [(5000, "too large", 1), (10, "too small", -1)])
def test_an_impossible_size_names_the_nearest_possible_one(size: int, problem: str, beyond: int) -> None:
    with pytest.raises(CorpusError, match=f"{size} pieces is {problem}") as caught:
        train_sentencepiece(LINES[:20], size, "nmt_nfkc_cf", 1.0)
    nearest = int(str(caught.value).split("--vocabulary-size ")[1].split()[0])
    assert load_sentencepiece(train_sentencepiece(LINES[:20], nearest, "nmt_nfkc_cf", 1.0)).get_piece_size() == nearest
    with pytest.raises(CorpusError, match=f"use --vocabulary-size {nearest} or "):
        train_sentencepiece(LINES[:20], nearest + beyond, "nmt_nfkc_cf", 1.0)


def test_long_paragraphs_take_part_in_training() -> None:
    """By default, sentencepiece skips lines of more than 4,192 bytes."""
    pieces = dictionary_symbols(load_sentencepiece(train_sentencepiece(["zyxw " * 5000], 12, "nmt_nfkc_cf", 1.0)))
    assert "\u2581zyxw" in pieces


def test_dictionary_holds_every_piece_in_the_models_order(model: bytes, tmp_path: Path) -> None:
    processor = load_sentencepiece(model)
    (tmp_path / "dict.txt").write_text(dictionary_text(processor), encoding="utf-8")
    pieces = [processor.id_to_piece(number) for number in range(150)]
    assert pieces[:3] == ["<unk>", "<s>", "</s>"]
    assert (tmp_path / "dict.txt").read_text(encoding="utf-8").splitlines() == [f"{piece} 1" for piece in pieces[3:]]


MODELS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "unigram": {"model_type": "unigram"},
    "byte fallback": {"byte_fallback": True, "vocabulary_size": 400},
    "padding piece": {"pad_id": 3},
    "specials elsewhere": {"unk_id": 5, "bos_id": 1, "eos_id": 0, "pad_id": 2},
    "own symbols": {"user_defined_symbols": ["<sep>", "\u2581zo"], "control_symbols": ["<mask>"]},
    "no dummy prefix": {"add_dummy_prefix": False},
}
TEXTS = [
    *LINES[:50],
    "Caf\u00e9 \u6f22\u5b57 \U0001f600 <sep> and \u2581zo!",
    "\u6f22",
    "x" * 300,
    "1\u00bd \ufb01 \u0130I",
    "unknown \u0416\u0416\u0416 mid\u0416word",
]


@pytest.mark.parametrize("name", MODELS)
def test_ids_equal_those_of_fairseqs_dictionary(name: str, tmp_path: Path) -> None:
    processor = load_sentencepiece(train_model(LINES, **MODELS[name]))
    dictionary = fairseq_dictionary(processor, tmp_path)
    encoder = FairseqEncoder(processor)
    assert encoder.dictionary_size == len(dictionary)
    texts = [clean_text(text) for text in TEXTS]
    assert [ids.tolist() for ids in encoder.encode(texts)] == [
        encoded_by_spelling(processor, dictionary, text) for text in texts
    ]
    ids, lengths = encoder.encode_flat(texts)
    assert ids.dtype == np.uint16
    assert lengths.tolist() == [len(item) for item in encoder.encode(texts)]
    assert encoder.encode_flat([])[0].shape == (0,)


@pytest.mark.parametrize("special", ["<s>", "<mask>"])
def test_text_that_spells_a_special_symbol_stays_text(special: str, tmp_path: Path) -> None:
    """Mapping by spelling would turn unknown text "<s>" into the symbol <s>; mapping by number does not."""
    text = f"{special} zo {special}zo zo{special} {special}{special}"
    training_text = [f"{line} {text} < / > {' '.join('unkpadmask')}" for line in LINES]
    known = load_sentencepiece(train_sentencepiece(training_text, 150, "nmt_nfkc_cf", 1.0))
    unknown = load_sentencepiece(train_model(["zo oz zoz"] * 20, vocabulary_size=9))
    dictionary = fairseq_dictionary(unknown, tmp_path)
    dictionary.add_symbol("<mask>")
    assert dictionary.index(special) in encoded_by_spelling(unknown, dictionary, text)[:-1]
    for processor in (known, unknown):
        assert special not in dictionary_symbols(processor)
        ids = FairseqEncoder(processor).encode([text])[0].tolist()
        assert ids[-1] == 2
        assert not {0, 1, 2} & set(ids[:-1])
    assert 3 not in FairseqEncoder(known).encode([text])[0]
    assert FairseqEncoder(unknown).encode([f"zoz {special} oz"])[0].tolist().count(3) == 1


def test_large_vocabularies_take_four_bytes_as_in_fairseq() -> None:
    from fairseq.data.indexed_dataset import best_fitting_int_dtype

    for pieces in (65_498, 65_499):
        symbols = [f"p{number}" for number in range(pieces - 3)]
        processor = load_sentencepiece(
            train_model(["ab"], vocabulary_size=pieces + 10, model_type="char", user_defined_symbols=symbols)
        )
        encoder = FairseqEncoder(processor)
        assert encoder.dtype == best_fitting_int_dtype(encoder.dictionary_size)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cannot read the sentencepiece model .*gone\.model: No such file"):
        load_sentencepiece(tmp_path / "gone.model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"user_defined_symbols": [symbol]}, f"{symbol}.* collides") for symbol in ("<mask>", "<pad>")],
        # With another spelling of the end symbol, text could become fairseq's.
        ({"eos_piece": "[E]", "user_defined_symbols": ["</s>"]}, "</s>.* collides"),
        *[({"user_defined_symbols": [symbol]}, "contains whitespace") for symbol in ("a b", "tab\tbed", "\u00a0")],
    ],
)
def test_a_model_with_an_impossible_piece_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        FairseqEncoder(load_sentencepiece(train_model(LINES, **options)))


def test_an_uncased_vocabulary_lowers_the_case_of_every_letter(model: bytes, tmp_path: Path) -> None:
    processor = load_sentencepiece(model)
    assert processor.normalize("\u0130stanbul I\u0307zmir I\u0131") == "\u2581istanbul\u2581izmir\u2581i\u0131"
    assert model == train_sentencepiece(LINES, 150, "nmt_nfkc_cf", 1.0)
    # All other characters are as without the additional rule; Unicode folds the case of Cherokee to capitals.
    named = load_sentencepiece(train_model(LINES, normalization_rule_name="nmt_nfkc_cf"))
    characters = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    before, after = (each.normalize([f"a{character}\u0301" for character in characters]) for each in (named, processor))
    assert [each for each, *both in zip(characters, before, after) if both[0] != both[1]] == ["\u0130"]
    folded = [each for each, text in zip(characters, after) if text != text.lower()]
    assert all(unicodedata.name(each).startswith("CHEROKEE") for each in folded)
    # The exported tokenizer has the same rule.
    fairseq_dictionary(processor, tmp_path).add_symbol("<mask>")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    tokenizer = build_tokenizer(tmp_path / "sentencepiece.bpe.model", load_dictionary(str(tmp_path)))
    assert tokenizer.encode("\u0130z I\u0307z").ids == tokenizer.encode("iz iz").ids
