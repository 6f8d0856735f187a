"""Tokens with the exact characters of the original text that each of them stands for.

Vocabularies normalize a text before they cut it: lower case, compatibility forms, white space. Lengths change with
that, so an answer that is predicted in tokens has to find its way back.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

WORD_START = "\u2581"

# Half of a surrogate pair is no text that can be encoded. One character for one keeps all offsets.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Spans = tuple[NDArray[np.int32], NDArray[np.int32]]


class AlignedTokens(NamedTuple):
    """A text as T tokens, and what of the text each stands for.

    ``begin`` and ``end`` never fall from one token to the next, so that a run of tokens is a substring of the text. A
    token without a character of its own (the mark of a word's start before a character that is no piece) has no
    substring: its ``begin`` is that of the next token and its ``end`` that of the one before, so ``begin >= end``. In
    all others ``begin < end``. Several tokens can stand for one character (a half sign becomes "1", a slash and "2").
    """

    tokens: NDArray[np.int64]  # [T] symbols of fairseq's dictionary
    begin: NDArray[np.int32]  # [T] the first character of the text that belongs to each token, white space left out
    end: NDArray[np.int32]  # [T] the character after its last


def encodable(text: str) -> str:
    """Return the text with a replacement character for every lone surrogate; no character moves."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def sentencepiece_spans(processor: SentencePieceProcessor, text: str) -> Spans:
    """Return where the pieces of a text begin and end in it, <int32>[T] each.

    sentencepiece's own spans count the white space and the dropped characters before a word as parts of it, give all of
    a character that becomes several to the last piece, and are asked for differently from release to release. What its
    normalizer tells of every character that it wrote is enough: pieces are runs of normalized characters.

    Raises:
        ValueError: the model's pieces are not runs of the normalized text, as those of byte fallback.
    """
    pieces: list[str] = processor.encode(text, out_type=str)
    normalized, sources = processor.normalize(text, with_offsets=True)
    if "".join(pieces) != normalized:
        raise ValueError(
            "this sentencepiece model writes pieces that are not in the text (byte fallback?), so that answers "
            "could not be found in it again: train the vocabulary without that option"
        )
    if not pieces:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    # The origin of several characters is the same where one became several; it ends where the next one begins.
    origins = np.array(sources, dtype=np.int64)
    starts = origins[:-1]
    ends = np.append(origins, len(text))[np.searchsorted(origins, starts, side="right")]
    own = np.array([not (character.isspace() or character == WORD_START) for character in normalized])
    first = np.cumsum([0, *map(len, pieces[:-1])])
    begin = np.minimum.reduceat(np.where(own, starts, len(text)), first)
    return _settled(begin, np.maximum.reduceat(np.where(own, ends, 0), first), len(text))


def tokenizer_spans(offsets: Sequence[tuple[int, int]], text: str) -> Spans:
    """Return where tokens of the library tokenizers begin and end, <int32>[T] each.

    That is what the library says, without white space. Of several characters that became one, such as a letter and its
    accent, it names the first alone: those behind a token that belong to none are the token's too.
    """
    covered = {place for begin, end in offsets for place in range(begin, end)}
    spans = np.zeros((len(offsets), 2), dtype=np.int64)
    for number, (begin, end) in enumerate(offsets):
        part = text[begin:end]
        begin, end = begin + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
        while begin < end < len(text) and end not in covered and not _is_dropped(text[end]):
            end += 1
        spans[number] = begin, end
    return _settled(spans[:, 0], spans[:, 1], len(text))


def _is_dropped(character: str) -> bool:
    """Tell whether a character that became nothing is white space, a control or a zero-width character."""
    return character.isspace() or unicodedata.category(character).startswith("C")


def _settled(begin: NDArray[np.int64], end: NDArray[np.int64], length: int) -> Spans:
    """Keep the promises of ``AlignedTokens``, also for tokens that have no character and where marks change places."""
    own = begin < end
    begin = np.minimum.accumulate(np.where(own, begin, length)[::-1])[::-1]
    return begin.astype(np.int32), np.maximum.accumulate(np.where(own, end, 0)).astype(np.int32)
