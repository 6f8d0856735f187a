"""How the tokens of a vocabulary form words, decided from the tokens alone, since corpora are stored as token ids."""

import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_maelm.text.dictionary import special_tokens
from fairseq_maelm.text.imported import TOKENIZER_FILE, TokenizerEncoder
from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS

# The byte of a space in byte-level vocabularies, and WordPiece's mark of tokens that continue a word.
_SPACE, _CONTINUED = "\u0120", "##"
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
# Bits of the kinds of characters. A token joins the word before it if it begins with a kind with which that ends.
_LETTERS, _DIGITS, _OTHERS, _ANY = 1, 2, 4, 255


class WordRule(NamedTuple):
    """How tokens form words.

    Attributes:
        starts: <bool>[V] True for tokens that begin a word wherever they are; None if words do not matter.
        kinds: <uint8>[2, V] the bits of the kinds of characters with which each token begins and ends: a token without
            a bit in common with the token before it begins a word too. None if only ``starts`` begin words.
    """

    starts: np.ndarray | None
    kinds: np.ndarray | None = None


def word_rule(dictionary: Dictionary, folder: Path) -> WordRule:
    """Return the rule of a vocabulary; special symbols and added tokens are words.

    Pieces of sentencepiece begin a word with ``WORD_START``, and tokens of WordPiece continue one with "##". Byte-level
    tokens begin a word with the byte of a space, and where letters, digits and other characters meet, as in GPT-2.

    Args:
        dictionary: the dictionary with ``<mask>``.
        folder: of the dictionary; if it has a tokenizer.json, this names the tokens.

    Raises:
        ValueError: the tokens have none of these marks.
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
