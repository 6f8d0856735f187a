"""Learning further merges of a byte-pair encoding from the words of a domain (Sennrich et al., 2016).

The learning goes on where the vocabulary's own ended: words stand as the pieces that they have, and the most frequent
pair of neighboring pieces becomes a piece, again and again. So every new piece is made of two that there were before
it, which is what an encoder that merges pairs needs to find it.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

Pieces = tuple[str, ...]
Pair = tuple[str, str]


class Merge(NamedTuple):
    """A new piece.

    Attributes:
        piece: its spelling.
        parts: the pieces of the old vocabulary that it is made of, two or more.
        frequency: how often the pair of pieces stood in the text when it was merged.
    """

    piece: str
    parts: Pieces
    frequency: int


def learn_merges(words: Mapping[Pieces, int], number: int, least_count: int, known: frozenset[str]) -> list[Merge]:
    """Learn the pieces that shorten the words of a text most.

    Args:
        words: how often each word occurs, as its pieces in the old vocabulary; none of them may be unknown.
        number: the most pieces to learn.
        least_count: a pair must occur so often.
        known: the old vocabulary; none of its pieces is learned again.

    Returns:
        the new pieces in the order in which they must be merged, the most frequent pairs first; of equally frequent
        ones the first in alphabetical order.
    """
    counts = _PairCounts(words)
    made_of: dict[str, Pieces] = {}
    merges: list[Merge] = []
    while len(merges) < number:
        best, count = counts.most_frequent()
        if best is None or count < least_count:
            break
        piece = "".join(best)
        if piece in known or piece in made_of:
            # Spelled already, although these words are cut otherwise: no second piece for it.
            counts.forget(best)
            continue
        made_of[piece] = tuple(part for half in best for part in made_of.get(half, (half,)))
        merges.append(Merge(piece, made_of[piece], count))
        counts.merge(piece)
    return merges


class _PairCounts:
    """Words as pieces, and how often each pair of neighbors stands in them."""

    def __init__(self, words: Mapping[Pieces, int]) -> None:
        self.words = [(list(pieces), count) for pieces, count in sorted(words.items()) if len(pieces) > 1]
        self.counts: Counter[Pair] = Counter()
        # Where a pair is or was, and all pairs that give the same piece: an encoder merges whatever gives it.
        self.places: dict[Pair, set[int]] = {}
        self.spelled: dict[str, set[Pair]] = {}
        for index in range(len(self.words)):
            self._add(index)
        # Entries may be out of date; the counter is right.
        self.heap = [(-count, pair) for pair, count in self.counts.items()]
        heapq.heapify(self.heap)

    def most_frequent(self) -> tuple[Pair | None, int]:
        while self.heap:
            count, pair = self.heap[0]
            actual = self.counts.get(pair, 0)
            if -count == actual > 0:
                return pair, actual
            heapq.heappop(self.heap)
            if actual > 0:
                heapq.heappush(self.heap, (-actual, pair))
        return None, 0

    def forget(self, pair: Pair) -> None:
        del self.counts[pair]

    def merge(self, piece: str) -> None:
        """Join all pairs that give the piece."""
        changed: set[Pair] = set()
        for pair in sorted(self.spelled[piece]):
            for index in sorted(self.places[pair]):
                pieces, count = self.words[index]
                joined = merged(pieces, pair)
                if len(joined) == len(pieces):
                    continue
                for old in zip(pieces, pieces[1:]):
                    if old in self.counts:
                        self.counts[old] -= count
                pieces[:] = joined
                self._add(index)
                changed.update(zip(pieces, pieces[1:]))
        for pair in sorted(changed):
            heapq.heappush(self.heap, (-self.counts[pair], pair))

    def _add(self, index: int) -> None:
        pieces, count = self.words[index]
        for pair in zip(pieces, pieces[1:]):
            self.counts[pair] += count
            self.places.setdefault(pair, set()).add(index)
            self.spelled.setdefault("".join(pair), set()).add(pair)


def merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with every occurrence of the pair joined, from left to right."""
    result: list[str] = []
    for piece in pieces:
        # The piece before this one may just have been joined, and then it is no half of a pair.
        if result and result[-1] == pair[0] and piece == pair[1]:
            result[-1] += piece
        else:
            result.append(piece)
    return result
