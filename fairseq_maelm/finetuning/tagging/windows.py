"""Sentences that are longer than the model's positions, seen through windows that overlap."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
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

    def stop_of(start: int) -> int:
        return bisect_right(ends, ends[start] + limit) - 1

    starts = [0]
    while (stop := stop_of(starts[-1])) < len(pieces):
        start = max(bisect_right(ends, ends[stop] - overlap) - 1, starts[-1] + 1)
        # Every window ends behind the one before it, or there would be no end.
        while stop_of(start) <= stop:
            start += 1
        starts.append(start)
    return _shared_out(ends, starts, [stop_of(start) for start in starts])


def _shared_out(ends: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> list[Window]:
    def context(window: int, word: int) -> int:
        if not starts[window] <= word < stops[window]:
            return -1
        return min(ends[word] - ends[starts[window]], ends[stops[window]] - ends[word + 1])

    owners, window = [], 0
    for word in range(len(ends) - 1):
        # A later window has less before the word and more behind it, so context rises and then falls.
        while window + 1 < len(starts) and context(window + 1, word) > context(window, word):
            window += 1
        owners.append(window)
    windows = []
    for number, words in groupby(range(len(owners)), owners.__getitem__):
        own = list(words)
        windows.append(Window(starts[number], stops[number], own[0], own[-1] + 1))
    return windows
