"""Joining of sentences to examples, and their truncation to the model's maximum length."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]


# The number of </s> between two texts: ``<s> a </s> </s> b </s>``.
SEPARATORS = 2


def special_tokens(sentences: int, separators: int = SEPARATORS) -> int:
    """Return the number of special tokens around sentences with ``separators`` between two of them."""
    return 2 + separators * (sentences - 1)


def shortened_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return the lengths of one or two sentences after truncation to ``room`` tokens, not counting special tokens.

    As by ``longest_first`` of the library tokenizers, which reads exported folders: the longer of two sentences is cut
    until both are equally long; then both are cut. Of an odd room, one more token is left to the longer sentence, or to
    the second of two equally long ones.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    if len(lengths) > 2:
        raise ValueError(f"only a single text or a pair can be truncated, not {len(lengths)} texts: give shorter ones")
    first, second = lengths
    shorter = min(first, second, room // 2)
    return [shorter, room - shorter] if first <= second else [room - shorter, shorter]


def truncate(
    sentences: Sequence[Tokens], max_positions: int, separators: int = SEPARATORS
) -> tuple[list[Tokens], bool]:
    """Cut sentences <int>[tokens], but no final </s>, to ``max_positions`` in total; return whether any was cut."""
    lengths = [len(sentence) - 1 for sentence in sentences]
    kept = shortened_lengths(lengths, max_positions - special_tokens(len(sentences), separators))
    if kept == lengths:
        return list(sentences), False
    return [np.append(sentence[:length], sentence[-1]) for sentence, length in zip(sentences, kept)], True


def join_sentences(
    sentences: Sequence[Tokens],
    begin: int,
    max_length: int | None,
    at_the_end: bool = False,
    separators: int = SEPARATORS,
) -> Tokens:
    """Join sentences <int>[tokens], each with its final </s>, to ``<s> a </s>``, then ``</s> b </s>`` for each other.

    Of more than ``max_length`` tokens in total (None: no limit), cut the last ones, final </s> included, if
    ``at_the_end``, or else those that ``truncate`` cuts, which takes at most two sentences. ``begin`` is the token <s>,
    and ``separators`` the number of </s> between two sentences, 1 or 2. A ValueError says that ``max_length`` is no
    integer or leaves no token of a sentence, or that there are too many sentences.
    """
    if max_length is not None:
        if not isinstance(max_length, int):
            raise ValueError(f"max_length must be a whole number of tokens, not {max_length!r}")
        least = special_tokens(len(sentences), separators) + len(sentences)
        if max_length < least:
            raise ValueError(f"max_length must be at least {least} to keep a token of each text, not {max_length}")
        if not at_the_end:
            sentences, _ = truncate(sentences, max_length, separators)
    # The first sentence begins with <s>, and the others with the </s> that their predecessors lack.
    between = [sentences[0][-1:]] * (separators - 1)
    parts = [
        np.concatenate([*between, each]) if number else np.append(begin, each) for number, each in enumerate(sentences)
    ]
    return np.concatenate(parts)[: max_length if at_the_end else None]
