"""Cutting examples to the model's length without losing their end symbols."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]


def special_tokens(sentences: int) -> int:
    """Count the special tokens around one sentence, ``<s> a </s>``, or two, ``<s> a </s> </s> b </s>``."""
    return 2 * sentences


def shortened_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many tokens of one or two sentences, special ones not counted, stay when ``room`` tokens may.

    The longer of two sentences loses tokens until both are equally long, then both lose them in turn, the second one
    first, as in BERT's code.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    if len(lengths) > 2:
        raise ValueError(f"a text or a pair can be cut, and here are {len(lengths)} texts")
    first, second = lengths
    if first <= room // 2:
        return [first, room - first]
    if second <= room // 2:
        return [room - second, second]
    return [room - room // 2, room // 2]


def truncate(sentences: Sequence[Tokens], max_positions: int) -> tuple[list[Tokens], bool]:
    """Cut sentences <int>[tokens] so that they fit the model with their special tokens; </s> at their ends stays.

    Returns:
        the sentences, and whether anything was cut.
    """
    lengths = [len(sentence) - 1 for sentence in sentences]
    kept = shortened_lengths(lengths, max_positions - special_tokens(len(sentences)))
    if kept == lengths:
        return list(sentences), False
    return [np.append(sentence[:length], sentence[-1]) for sentence, length in zip(sentences, kept)], True
