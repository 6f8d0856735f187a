"""Find the words and pieces of words that a domain's text has often and a vocabulary cuts into several tokens."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from fairseq_maelm.text.tokenizer_file import encode_text

# The tokens of letters and digits that follow each other within a word.
Run = tuple[str, ...]
Pair = tuple[str, str]

# How often, and in how many documents, a run must be. Texts of fewer documents ask for all of them.
LEAST = 5
# One document in this many is read for the measurement alone.
HELD_OUT = 10


@dataclass
class WordCounts:
    """The words of a text: of most documents as runs of tokens, and of the others as they stand between spaces."""

    documents: int = 0
    runs: Counter[Run] = field(default_factory=Counter)  # of at least two tokens
    documents_of: Counter[Run] = field(default_factory=Counter)
    held_out: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)

    def frequent(self) -> dict[Run, int]:
        """Return the counts of the runs that are frequent in many documents."""
        documents = min(LEAST, self.documents)
        return {run: n for run, n in self.runs.items() if n >= LEAST and self.documents_of[run] >= documents}


def count_words(documents: Iterable[list[str]], runs_of: Callable[[str], list[Run]]) -> WordCounts:
    """Count the words of documents, each a list of paragraphs; ``runs_of`` returns the runs of a word."""
    counts, runs_of = WordCounts(), cache(runs_of)
    for number, paragraphs in enumerate(documents, 1):
        words = Counter(word for paragraph in paragraphs for word in paragraph.split())
        if number % HELD_OUT == 0:
            counts.held_out.update(words)
            continue
        counts.documents += 1
        counts.words.update(words)
        found: Counter[Run] = Counter()
        for word, times in words.items():
            for run in runs_of(word):
                found[run] += times
        counts.runs.update(found)
        counts.documents_of.update(found.keys())
    return counts


def runs_of_tokens(tokenizer: Any, whole: bool) -> Callable[[str], list[Run]]:
    """Return a function from a word to its runs of at least two tokens, with a letter and without unknown tokens.

    With ``whole``, a run must be all that the tokenizer cuts as one word: no part of "x-ray" or "50%".
    """
    # A unigram model gives unknown characters as they are.
    known = tokenizer.get_vocab().keys() - {getattr(tokenizer.model, "unk_token", None)}

    def runs_of(word: str) -> list[Run]:
        text = f" {word}"
        encoded = encode_text(tokenizer, text)
        tokens, words = encoded.tokens, encoded.word_ids
        parts = [text[begin:end].strip() for begin, end in encoded.offsets]
        # The mark of a word's start may be a token without characters. Bytes of rare characters have names like <0xE2>.
        fits = [
            token in known and "<" not in token and (not part or part.isalnum())
            for token, part in zip(tokens, parts, strict=True)
        ]
        found = []
        for _, places in groupby(range(len(tokens)), lambda place: (words[place], whole or fits[place])):
            run = list(places)
            has_letter = any(character.isalpha() for place in run for character in parts[place])
            if len(run) > 1 and has_letter and all(fits[place] for place in run):
                found.append(tuple(tokens[place] for place in run))
        return found

    return runs_of


def best_words(counts: Mapping[Run, int], most: int) -> list[Run]:
    """Return the runs that save most tokens if each becomes one token, best first."""
    return sorted(counts, key=lambda run: (-counts[run] * (len(run) - 1), run))[:most]


def best_pairs(counts: Mapping[Run, int], most: int, taken: Iterable[str]) -> list[Pair]:
    """Return the pairs of neighbors that save most tokens if each is merged, as byte-pair encoding is trained.

    A merged pair is a token that later pairs may have as a part; its name, that of both parts together, must not be one
    of ``taken``.
    """
    names, words = set(taken), _Words(counts)
    found: list[Pair] = []
    heap = [(-number, pair) for pair, number in words.numbers.items()]
    heapq.heapify(heap)
    while heap and len(found) < most:
        number, pair = heapq.heappop(heap)
        if -number != words.numbers[pair]:  # merges have taken some; a pair of older tokens never becomes more frequent
            heapq.heappush(heap, (-words.numbers[pair], pair))
        elif -number < LEAST:
            break
        elif "".join(pair) not in names:
            found.append(pair)
            names.add("".join(pair))
            for each in words.merge(pair):
                heapq.heappush(heap, (-words.numbers[each], each))
    return found


class _Words:
    """Words as lists of tokens, with the number of each pair of neighbors and the words that may have it."""

    def __init__(self, counts: Mapping[Run, int]) -> None:
        self.words, self.times = [list(run) for run in counts], list(counts.values())
        self.numbers: Counter[Pair] = Counter()
        self.places: dict[Pair, set[int]] = defaultdict(set)
        for place in range(len(self.words)):
            self._count(place, 1)

    def _count(self, place: int, sign: int) -> None:
        for pair in pairwise(self.words[place]):
            self.numbers[pair] += sign * self.times[place]
            self.places[pair].add(place)

    def merge(self, pair: Pair) -> set[Pair]:
        """Merge a pair in all words, and return the pairs that its token now has with neighbors."""
        merged = "".join(pair)
        new: set[Pair] = set()
        for place in list(self.places[pair]):
            self._count(place, -1)
            self.words[place] = list(_merged(self.words[place], pair))
            self._count(place, 1)
            new.update(each for each in pairwise(self.words[place]) if merged in each)
        return new


def _merged(word: list[str], pair: Pair) -> Iterator[str]:
    place = 0
    while place < len(word):
        both = tuple(word[place : place + 2]) == pair
        yield "".join(pair) if both else word[place]
        place += 1 + both
