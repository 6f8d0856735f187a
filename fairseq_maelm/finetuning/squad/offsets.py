"""Pieces of a text with the exact characters of the original text that each of them stands for.

sentencepiece normalizes a text before it cuts it: lower case, compatibility forms, white space. Lengths change with
that, so an answer that is predicted in pieces has to find its way back. The normalizer tells for every character that
it wrote where in the original the text behind it begins; pieces are runs of normalized characters.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

WORD_START = "\u2581"

# The mark of a word's start, which is a space, and what else the normalizer may leave of white space; U+3000 is the
# last that Unicode has.
_BLANK = np.array([chr(code).isspace() or chr(code) == WORD_START for code in range(0x3002)], dtype=bool)

# Half of a surrogate pair is no text that can be encoded. One character for one keeps all offsets.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class AlignedTokens(NamedTuple):
    """A text as T tokens, and what of the text each stands for.

    ``begin`` and ``end`` never fall from one token to the next, so that a run of tokens is a substring of the text. A
    token without a character of its own (the mark of a word's start before a character that is no piece) has no
    substring: its ``begin`` is that of the next token and its ``end`` that of the one before, so ``begin >= end``. In
    all others ``begin < end``. Several pieces can stand for one character (a half sign becomes "1", a slash and "2").

    Attributes:
        tokens: <int64>[T] symbols of fairseq's dictionary.
        begin: <int32>[T] the first character of the text that belongs to each token, white space left out.
        end: <int32>[T] the character after its last.
    """

    tokens: NDArray[np.int64]
    begin: NDArray[np.int32]
    end: NDArray[np.int32]


class Aligner:
    """Cuts texts into pieces and aligns the pieces with the texts.

    Args:
        processor: the sentencepiece model.
        token_of_piece: <int64>[pieces] the symbol of fairseq's dictionary for each piece of the model.
    """

    def __init__(self, processor: SentencePieceProcessor, token_of_piece: NDArray[np.int64]) -> None:
        self._processor = processor
        self._token_of_piece = token_of_piece

    @classmethod
    def from_symbols(cls, processor: SentencePieceProcessor, symbols: Sequence[str], unknown: int) -> "Aligner":
        """Build it from fairseq's dictionary.

        Args:
            processor: the sentencepiece model.
            symbols: all symbols of the dictionary, the special ones included.
            unknown: the number of <unk>.

        Raises:
            ValueError: if a piece of the model is not in the dictionary.
        """
        number = {symbol: index for index, symbol in enumerate(symbols)}
        token_of_piece = np.full(processor.get_piece_size(), unknown, dtype=np.int64)
        for piece in range(processor.get_piece_size()):
            if processor.is_unknown(piece) or processor.is_control(piece):
                continue
            spelling = processor.id_to_piece(piece)
            if spelling not in number:
                raise ValueError(
                    f"the piece {spelling!r} of the sentencepiece model is not in dict.txt: the two do not belong "
                    "together; take both from one folder of `maelm prepare`"
                )
            token_of_piece[piece] = number[spelling]
        return cls(processor, token_of_piece)

    def tokens(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The tokens <int64>[T] of each text, without special symbols around them."""
        encoded = self._processor.encode([_encodable(text) for text in texts], out_type=int)
        return [self._token_of_piece[np.array(ids, dtype=np.int64)] for ids in encoded]

    def align(self, text: str) -> AlignedTokens:
        """Cut one text and align it.

        Raises:
            ValueError: if the model's pieces are not runs of the normalized text, as those of byte fallback.
        """
        text = _encodable(text)
        ids = self._processor.encode(text, out_type=int)
        pieces = self._processor.encode(text, out_type=str)
        normalized, sources = self._processor.normalize(text, with_offsets=True)
        if "".join(pieces) != normalized or len(ids) != len(pieces):
            raise ValueError(
                "this sentencepiece model writes pieces that are not in the text (byte fallback?), so that answers "
                "could not be found in it again: train the vocabulary without that option"
            )
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        begin, end = _piece_spans(normalized, np.array(sources, dtype=np.int64), lengths, len(text))
        return AlignedTokens(self._token_of_piece[np.array(ids, dtype=np.int64)], begin, end)


def _encodable(text: str) -> str:
    return _LONE_SURROGATE.sub("\ufffd", text)


def _piece_spans(
    normalized: str, sources: NDArray[np.int64], lengths: NDArray[np.int64], text_length: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Characters <int32>[T] from and to which pieces of given lengths reach.

    ``sources`` <int64>[n + 1] holds for each character of the normalized text where its origin begins; that of several
    characters is the same when one became several.
    """
    if not len(lengths):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    codes = np.frombuffer(normalized.encode("utf-32-le"), dtype="<u4")
    own = ~_BLANK[np.minimum(codes, len(_BLANK) - 1)]
    starts = sources[:-1]
    following = np.searchsorted(sources, starts, side="right")
    ends = np.append(sources, text_length)[following]
    # The next own character's start from the right, the last own character's end from the left.
    begin_at = np.minimum.accumulate(np.where(own, starts, text_length)[::-1])[::-1]
    end_at = np.maximum.accumulate(np.where(own, ends, 0))
    last = np.cumsum(lengths)
    return begin_at[last - lengths].astype(np.int32), end_at[last - 1].astype(np.int32)


def token_span(begin: NDArray[np.int32], end: NDArray[np.int32], first: int, last: int) -> tuple[int, int] | None:
    """The tokens that hold any of the characters ``first`` to ``last`` (exclusive) of a text.

    A boundary inside a piece takes the whole piece: the answer that comes back is never shorter than the one that went
    in.

    Args:
        begin: <int32>[T] of the text's ``AlignedTokens``.
        end: <int32>[T] likewise.
        first: the first character.
        last: the character after the last.

    Returns:
        the first and the last token (inclusive), or None if no token holds such a character.
    """
    first_token = int(np.searchsorted(end, first, side="right"))
    last_token = int(np.searchsorted(begin, last, side="left")) - 1
    return (first_token, last_token) if first_token <= last_token else None
