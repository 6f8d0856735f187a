"""Small vocabularies of all kinds, in folders like those of `maelm prepare corpus` and `maelm import`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_maelm.interop.export.tokenizer import build_tokenizer
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.vocabulary import (
    DICTIONARY_FILE,
    FAIRSEQ_SYMBOLS,
    MASK_SYMBOL,
    MODEL_FILE,
    TOKENIZER_FILE,
    UNKNOWN,
    dictionary_text,
    load_sentencepiece,
    train_sentencepiece,
)

TEXT = [
    "the cat sat on the mat.",
    "the dogs ran to the river and the cats ran away.",
    "a house, a garden, a river and a mat!",
    "over the river ran the dog; the house stood still.",
] * 20
ADDED: list[str] = []


def sentencepieces(folder: Path, size: int = 80) -> Path:
    """Make an uncased model."""
    model = train_sentencepiece(TEXT, size, "nmt_nfkc_cf", 0.9995)
    (folder / MODEL_FILE).write_bytes(model)
    (folder / DICTIONARY_FILE).write_text(dictionary_text(load_sentencepiece(model)), encoding="utf-8")
    return folder


def byte_pairs(folder: Path, size: int = 340) -> Path:
    """Make a byte-level BPE like RoBERTa's, which distinguishes words at the start of a text and after a space."""
    tokenizers = pytest.importorskip("tokenizers")
    return _imported(folder, tokenizers.ByteLevelBPETokenizer(), size)


def word_pieces(folder: Path, size: int = 80) -> Path:
    """Make an uncased WordPiece like BERT's."""
    tokenizers = pytest.importorskip("tokenizers")
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), FAIRSEQ_SYMBOLS))
    return _imported(folder, tokenizers.BertWordPieceTokenizer(lowercase=True, **names), size)


def exported(folder: Path, size: int = 80) -> Path:
    """Make a tokenizer.json of the sentencepiece model, whose normalizer composes characters."""
    pytest.importorskip("tokenizers")
    model = sentencepieces(folder, size) / MODEL_FILE
    build_tokenizer(model, load_dictionary(str(folder))).save(str(folder / TOKENIZER_FILE))
    model.unlink()
    return folder


def unigrams(folder: Path) -> Path:
    """Make a unigram model like XLM-R's, in which special symbols are pieces with the highest scores."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted({letter for line in TEXT for letter in line if letter != " "} | set("</>"))
    pieces = [(name, 0.0) for name in FAIRSEQ_SYMBOLS] + [(letter, -4.0) for letter in [WORD_START, *letters]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([*pieces, (MASK_SYMBOL, 0.0)], unk_id=UNKNOWN))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens([*FAIRSEQ_SYMBOLS, MASK_SYMBOL])
    tokenizer.save(str(folder / TOKENIZER_FILE))
    symbols = "".join(f"{name} 1\n" for name, _ in pieces[len(FAIRSEQ_SYMBOLS) :])
    (folder / DICTIONARY_FILE).write_text(symbols, encoding="utf-8")
    return folder


def _imported(folder: Path, tokenizer: object, size: int) -> Path:
    special = list(FAIRSEQ_SYMBOLS)
    tokenizer.train_from_iterator(TEXT, vocab_size=size, special_tokens=special, show_progress=False)  # type: ignore
    inner = tokenizer._tokenizer  # type: ignore[attr-defined]
    inner.add_special_tokens([*ADDED, MASK_SYMBOL])
    inner.save(str(folder / TOKENIZER_FILE))
    names = sorted(inner.get_vocab(), key=inner.token_to_id)
    assert names[:4] == special and names[-1] == MASK_SYMBOL
    (folder / DICTIONARY_FILE).write_text("".join(f"{name} 1\n" for name in names[4:-1]), encoding="utf-8")
    return folder


KINDS: dict[str, Callable[..., Path]] = {
    "sentencepiece": sentencepieces,
    "byte pairs": byte_pairs,
    "word pieces": word_pieces,
    "unigrams": unigrams,
    "exported": exported,
}
