"""Sentences that are longer than the model's positions, seen through windows that overlap."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Window(NamedTuple):
    """Words [start, stop) of a sentence that the model sees at once, and those [first, last) that it labels in it."""

    start: int
    stop: int
    first: int
    last: int


def cut_windows(pieces: Sequence[int], limit: int, overlap: int) -> list[Window]:
    """Cut a sentence into windows of whole words, so that every word is labeled in exactly one of them.

    That one is, of the windows that hold the word, the one where it has most context: where the smaller of the numbers
    of pieces before and after it is largest (Devlin et al., 2019, choose windows of a text for an answer in this way);
    the earlier one of equals.

    Args:
        pieces: pieces of each word, each from 1 to ``limit``.
        limit: the most pieces of a window.
        overlap: pieces that neighboring windows share at least, in [0, limit); less where whole words leave no room.
    """
    ends = [0, *accumulate(pieces)]
    starts, stops = [0], [_words_from(ends, 0, limit)]
    while stops[-1] < len(pieces):
        start = stops[-1]
        while start - 1 > starts[-1] and ends[stops[-1]] - ends[start] < overlap:
            start -= 1
        # Every window ends behind the one before it, or there would be no end.
        while _words_from(ends, start, limit) <= stops[-1]:
            start += 1
        starts.append(start)
        stops.append(_words_from(ends, start, limit))
    return _shared_out(ends, starts, stops)


def _words_from(ends: Sequence[int], start: int, limit: int) -> int:
    stop = start
    while stop < len(ends) - 1 and ends[stop + 1] - ends[start] <= limit:
        stop += 1
    return stop


def _shared_out(ends: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> list[Window]:
    owners, window = [], 0
    for word in range(len(ends) - 1):

        def context(candidate: int, word: int = word) -> int:
            if not starts[candidate] <= word < stops[candidate]:
                return -1
            return min(ends[word] - ends[starts[candidate]], ends[stops[candidate]] - ends[word + 1])

        # A later window has less before the word and more behind it, so context rises and then falls.
        while window + 1 < len(starts) and context(window + 1) > context(window):
            window += 1
        owners.append(window)
    windows = []
    for number, (start, stop) in enumerate(zip(starts, stops)):
        own = [word for word in range(start, stop) if owners[word] == number]
        if own:
            windows.append(Window(start, stop, own[0], own[-1] + 1))
    return windows
