"""Loading and checking of a data folder's dictionary; classes and frequencies of its symbols, and how they form words.

Words are decided from the tokens alone, since corpora are stored as token ids.
"""

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_maelm.files.atomic import read_json, refuse_special_files, sha256_of
from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.vocabulary import (
    FAIRSEQ_SYMBOLS,
    TOKENIZER_FILE,
    TokenizerEncoder,
    dictionary_symbols,
    load_sentencepiece,
)
from fairseq_maelm.text.vocabulary import MASK_SYMBOL as MASK
from fairseq_maelm.text.vocabulary import MODEL_FILE as SENTENCEPIECE_MODEL

# Rows without a token have names of this form, as in fairseq's dictionaries.
FILLER = "madeupword"
# Frequencies are counted on the first tokens of the text; more tokens hardly change them.
_COUNTED_TOKENS = 20_000_000


def load_dictionary(folder: str) -> Dictionary:
    """Read ``dict.txt``, check it against the folder's manifest and sentencepiece model, and append ``<mask>``."""
    path = os.path.join(folder, "dict.txt")
    if not os.path.exists(folder):
        raise FileNotFoundError(f"there is no folder {folder}")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"there is no dict.txt in {folder}: give the folder that `maelm prepare corpus` wrote, or copy "
            "into this folder the dictionary that the text was binarized with"
        )
    refuse_special_files(Path(folder, name) for name in ("dict.txt", "manifest.json", SENTENCEPIECE_MODEL))
    dictionary = Dictionary.load(path)
    _check_manifest(folder, path)
    _check_sentencepiece(folder, dictionary)
    if dictionary.add_symbol(MASK) != len(dictionary) - 1:
        raise ValueError(
            f"{path} lists {MASK} in line {dictionary.index(MASK) - dictionary.nspecial + 1}, but it must be the last "
            "symbol or absent: remove the line, and binarize the text with the new file"
        )
    return dictionary


def class_names(dictionary: Dictionary) -> list[str]:
    """Return the labels in a label dictionary, ordered by class index."""
    # <mask> and the filler words of fairseq-preprocess are not labels.
    labels = dictionary.symbols[dictionary.nspecial :]
    return [label for label in labels if label != MASK and not label.startswith(FILLER)]


def check_shards(folders: Sequence[str]) -> None:
    """Check all shards of a corpus before training, since each is opened only in its epoch, perhaps days later."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder} (the data argument is {os.pathsep.join(folders)})")
    dictionaries = [path for path in (Path(folder, "dict.txt") for folder in folders) if path.exists()]
    for path in dictionaries[1:]:
        if path.read_bytes() != dictionaries[0].read_bytes():
            raise ValueError(
                f"{path} differs from {dictionaries[0]}: the shards of a corpus must share one dictionary. Prepare "
                "them together, by `maelm prepare corpus --shards`, or with the first shard's sentencepiece.bpe.model"
            )


def _check_manifest(folder: str, dictionary_path: str) -> None:
    manifest = Path(folder, "manifest.json")
    if not manifest.exists():
        return
    outputs = read_json(manifest).get("outputs", {})
    # Each shard's manifest lists the files of all shards.
    sums = {facts["sha256"] for name, facts in dict(outputs).items() if name.split("/")[-1] == "dict.txt"}
    if not sums:
        raise ValueError(
            f"{manifest} is damaged: it does not list dict.txt. Restore the original, or prepare the text again"
        )
    if sha256_of(Path(dictionary_path)) not in sums:
        raise ValueError(
            f"{dictionary_path} is not the dictionary that {folder} was prepared with (its sha256 differs from the one "
            "in manifest.json): restore the original, or prepare the text again"
        )


def _check_sentencepiece(folder: str, dictionary: Dictionary) -> None:
    model = Path(folder, SENTENCEPIECE_MODEL)
    if not model.exists():
        return
    pieces = set(dictionary_symbols(load_sentencepiece(model)))
    symbols = set(dictionary.symbols[dictionary.nspecial :])
    missing, surplus = pieces - symbols, {symbol for symbol in symbols - pieces if FILLER not in symbol}
    if missing or surplus:
        example = repr(sorted(missing or surplus)[0])
        raise ValueError(
            f"dict.txt and {SENTENCEPIECE_MODEL} in {folder} do not belong together: {len(missing)} pieces of the "
            f"model are not in dict.txt, and {len(surplus)} symbols of dict.txt are not pieces of the model (for "
            f"example {example}). dict.txt must be made from the model, as `maelm prepare corpus` does, not from "
            "counts over a text"
        )


def special_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return <bool>[V], True for fairseq's special symbols and <mask>."""
    tokens = np.arange(len(dictionary))
    return (tokens < dictionary.nspecial) | (tokens == dictionary.index(MASK))


def real_tokens(dictionary: Dictionary) -> np.ndarray:
    """Return the token ids <int64>[R] of ordinary text: all but fairseq's special symbols and <mask>."""
    return np.flatnonzero(~special_tokens(dictionary))


def log_frequencies(text: np.ndarray, blocks: int, dictionary: Dictionary) -> np.ndarray:
    """Return each symbol's log relative frequency <float32>[V] in a text <int>[tokens], with add-one smoothing.

    The text contains no ``<s>``, so one ``<s>`` per block is added to the counts.
    """
    counted = text[:_COUNTED_TOKENS]
    counts = np.bincount(counted, minlength=len(dictionary)) + 1.0
    counts[dictionary.bos()] += blocks * len(counted) / len(text)
    return np.log(counts / counts.sum()).astype(np.float32)


# The byte of a space in byte-level vocabularies, and WordPiece's mark of tokens that continue a word.
_SPACE, _CONTINUED = "\u0120", "##"
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
# Bits of the kinds of characters. A token joins the word before it if it begins with a kind with which that ends.
_LETTERS, _DIGITS, _OTHERS, _ANY = 1, 2, 4, 255


class WordRule(NamedTuple):
    """How tokens form words.

    A token also begins a word if its first character has no kind in common with the last character before it.
    """

    starts: np.ndarray | None  # <bool>[V] tokens that begin a word anywhere; None if words do not matter
    kinds: np.ndarray | None = None  # <uint8>[2, V] bits of the kinds of characters at begin and end; or None


def word_rule(dictionary: Dictionary, folder: Path) -> WordRule:
    """Return the rule of a vocabulary; special symbols and added tokens are words.

    Pieces of sentencepiece begin a word with ``WORD_START``, and tokens of WordPiece continue one with "##". Byte-level
    tokens begin a word with the byte of a space, and where letters, digits and other characters meet, as in GPT-2. A
    tokenizer.json in ``folder`` names the tokens. A ValueError says that they have none of these marks.
    """
    tokens, added = _tokens(dictionary, folder / TOKENIZER_FILE)
    special = special_tokens(dictionary) | added

    def marked(mark: str) -> int:
        # The vocabularies of some BERTs have the characters themselves as tokens.
        return sum(token.startswith(mark) and token[len(mark) :][:1].isalpha() for token in tokens)

    mark = max((WORD_START, _CONTINUED, _SPACE), key=marked)
    if not marked(mark):
        raise ValueError(
            f"--mask-whole-words finds words by {WORD_START}, {_SPACE} or {_CONTINUED} in front of tokens, but no "
            f"token of the vocabulary in {folder} is one of these and a letter: omit this option"
        )
    begins = np.array([token.startswith(mark) for token in tokens])
    starts = special | (~begins if mark == _CONTINUED else begins)
    if mark != _SPACE:
        return WordRule(starts, np.stack([~starts, ~added]).astype(np.uint8) if added.any() else None)
    kinds = np.array([_kinds(token) for token in tokens], dtype=np.uint8).T
    kinds[:, special] = 0
    return WordRule(starts, kinds)


def _tokens(dictionary: Dictionary, file: Path) -> tuple[list[str], np.ndarray]:
    """Return all tokens in the order of the dictionary, and <bool>[V], True for tokens that users added."""
    tokens: list[str] = list(dictionary.symbols)
    added = np.zeros(len(tokens), dtype=bool)
    if file.is_file():
        tokenizer = TokenizerEncoder(file, len(tokens) - len(FAIRSEQ_SYMBOLS) - 1).tokenizer
        for token, number in tokenizer.get_vocab().items():
            tokens[number] = token
        added[list(tokenizer.get_added_tokens_decoder())] = True
    return tokens, added & ~special_tokens(dictionary)


def _kinds(token: str) -> tuple[int, int]:
    """Return the bits of the kinds of a byte-level token's first and last characters."""
    data = bytes(_BYTES.get(character, ord("?")) for character in token)
    text = data.decode("utf-8", "ignore").removeprefix(" ")
    # The rest of a character always continues it; characters of several tokens count as letters.
    first = _ANY if b"\x80" <= data[:1] < b"\xc0" else _kind(text[:1])
    # A contraction such as 's is a word. A space alone is a part of the word after it.
    is_contraction = text[:1] == "'" and text[1:].isalpha()
    return first, 0 if is_contraction else _ANY if data == b" " else _kind(text[-1:])


def _kind(character: str) -> int:
    return {"L": _LETTERS, "N": _DIGITS}.get(unicodedata.category(character or "a")[0], _OTHERS)
