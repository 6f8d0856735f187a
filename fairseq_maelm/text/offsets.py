"""The characters of the original text that each token represents.

Tokenizers normalize a text (case, compatibility forms, white space) before splitting it into tokens, and normalization
changes the length. Predicted answers are token ranges and must be mapped back to the original text.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

WORD_START = "\u2581"

# Lone surrogates cannot be encoded as UTF-8. Replacing each by one character preserves all offsets.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Spans = tuple[NDArray[np.int32], NDArray[np.int32]]


class AlignedTokens(NamedTuple):
    """The T tokens of a text and their substrings, ``text[begin:end]``.

    ``begin`` and ``end`` never decrease from one token to the next, so a range of tokens is also a substring. A token
    without characters, such as a word-start marker before an unknown character, has the next token's ``begin`` and the
    previous token's ``end``, so ``begin >= end``. Several tokens can share one character (the sign for one half becomes
    "1", a slash and "2").
    """

    tokens: NDArray[np.int64]  # [T] token ids of fairseq's dictionary
    begin: NDArray[np.int32]  # [T] index of the first character, white space excluded
    end: NDArray[np.int32]  # [T] index after the last character


def encodable(text: str) -> str:
    """Replace every lone surrogate by the replacement character; all other characters keep their positions."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def sentencepiece_spans(processor: SentencePieceProcessor, text: str) -> Spans:
    """Return the begin and end of each piece in the text, <int32>[T] each.

    Pieces are substrings of the normalized text, and the normalizer reports the source position of each normalized
    character; a ValueError says that they are none, as with byte fallback. sentencepiece's own spans are not used: they
    include white space and removed characters before a word, assign a character that becomes several to the last piece
    only, and their API changes between releases.
    """
    pieces: list[str] = processor.encode(text, out_type=str)
    normalized, sources = processor.normalize(text, with_offsets=True)
    if "".join(pieces) != normalized:
        raise ValueError(
            "this sentencepiece model makes pieces that are not in the text (byte fallback?), so answers could not be "
            "found in the text: train a vocabulary without byte fallback"
        )
    if not pieces:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    # Normalized characters from the same source character share an origin, which ends where the next origin begins.
    origins = np.array(sources, dtype=np.int64)
    starts = origins[:-1]
    ends = np.append(origins, len(text))[np.searchsorted(origins, starts, side="right")]
    own = np.array([not (character.isspace() or character == WORD_START) for character in normalized])
    first = np.cumsum([0, *map(len, pieces[:-1])])
    begin = np.minimum.reduceat(np.where(own, starts, len(text)), first)
    return _settled(begin, np.maximum.reduceat(np.where(own, ends, 0), first), len(text))


def tokenizer_spans(offsets: Sequence[tuple[int, int]], text: str) -> Spans:
    """Convert offsets of the library tokenizers to the begin and end of each token, <int32>[T], without white space.

    If several characters became one, such as a letter and its accent, the library's offsets cover only the first:
    following characters that belong to no token are added to the token.
    """
    covered = {place for begin, end in offsets for place in range(begin, end)}
    spans = np.zeros((len(offsets), 2), dtype=np.int64)
    for number, (begin, end) in enumerate(offsets):
        part = text[begin:end]
        begin, end = begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
        # Normalization removes white space, controls and zero-width characters.
        while begin < end < len(text) and end not in covered and not text[end].isspace():
            if unicodedata.category(text[end]).startswith("C"):
                break
            end += 1
        spans[number] = begin, end
    return _settled(spans[:, 0], spans[:, 1], len(text))


def _settled(begin: NDArray[np.int64], end: NDArray[np.int64], length: int) -> Spans:
    """Adjust spans so that begins and ends never decrease, as ``AlignedTokens`` requires."""
    own = begin < end
    begin = np.minimum.accumulate(np.where(own, begin, length)[::-1])[::-1]
    return begin.astype(np.int32), np.maximum.accumulate(np.where(own, end, 0)).astype(np.int32)
