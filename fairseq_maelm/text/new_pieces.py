"""Find the words and pieces of words that a domain's text has often and a vocabulary cuts into several tokens."""

import heapq
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby, islice, pairwise
from typing import Any, NamedTuple

from fairseq_maelm.text.offsets import WORD_START
from fairseq_maelm.text.tokenizer_file import encode_text
from fairseq_maelm.text.vocabulary import UNKNOWN

# The tokens of letters and digits that follow each other within a word. A letter without a token stands for itself.
Run = tuple[str, ...]

# How often, and in how many documents, a piece must be. Texts of fewer documents ask for all of them.
LEAST = 5
# One document in this many is read for the measurement alone.
HELD_OUT = 10
_CONTINUED = "##"
# The name of a byte of a rare character.
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class NewPiece(NamedTuple):
    """A new token, and the tokens that it replaces: old ones, or new ones before it."""

    name: str
    parts: Run
    inside: bool = False  # among the words that a WordPiece adds: whether it is found within a word

    @property
    def is_pair(self) -> bool:
        """True if two tokens are merged; False for a letter that had no token, and for a whole word."""
        return len(self.parts) == 2 and "".join(self.parts) == self.name


@dataclass
class WordCounts:
    """The words of a text: of most documents as runs of tokens, and of the others as they stand between spaces."""

    documents: int = 0
    runs: Counter[Run] = field(default_factory=Counter)
    documents_of: dict[Run, set[int]] = field(default_factory=lambda: defaultdict(set))  # up to ``LEAST`` of a run
    held_out: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)


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
        for word, times in words.items():
            for run in runs_of(word):
                counts.runs[run] += times
                if len(counts.documents_of[run]) < LEAST:
                    counts.documents_of[run].add(number)
    return counts


class Cutter:
    """Cuts words into the runs that new tokens may replace: several tokens, or a letter without a token.

    With ``whole``, a run must be all that the tokenizer cuts as one word (no part of "x-ray" or "50%"), or several
    words of one character each, as a WordPiece cuts Chinese.
    """

    def __init__(self, tokenizer: Any, whole: bool) -> None:
        self.tokenizer, self.whole = tokenizer, whole
        self.unknown = getattr(tokenizer.model, "unk_token", None) or tokenizer.id_to_token(UNKNOWN)
        # A unigram model gives unknown characters as they are.
        self.known = tokenizer.get_vocab().keys() - {self.unknown}
        self.added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        self.letters: dict[str, Run] = {}  # each letter (with ``whole``, word) without a token, and what stands for it

    def __call__(self, word: str, any_character: bool = False) -> list[Run]:
        """Return the runs of a word; ``any_character`` allows others than letters and digits."""
        found, tokens = [], list(self._tokens(f" {word}"))
        for _, group in groupby(tokens, lambda each: (each[1], self.whole or any_character or _is_word(each[2]))):
            run = tuple(group)
            fits = any_character or all(_is_word(part) for *_, part in run)
            if fits and any(letter.isalpha() for *_, part in run for letter in part):
                found.append(tuple(token for token, *_ in run))
        if self.whole:
            characters = groupby((token for token, *_ in tokens), _is_alone)
            found = [run for run in found if not is_isolated(run)] + [tuple(run) for alone, run in characters if alone]
        return [run for run in found if len(run) > 1 or run[0] in self.letters]

    def _tokens(self, text: str) -> Iterator[tuple[str, int, str]]:
        """Yield the tokens of a word, each with the number of the tokenizer's word and its characters."""
        encoded = encode_text(self.tokenizer, text)
        rows = zip(encoded.tokens, encoded.word_ids, encoded.offsets, strict=True)
        for (raw, word, offsets), group in groupby(rows, lambda row: (self._is_raw(row[0]), row[1], row[2])):
            names, part = tuple(token for token, *_ in group), text[slice(*offsets)].strip()
            normalizer = self.tokenizer.normalizer if raw else None
            # A normalizer may mark the word's start.
            written = normalizer.normalize_str(part).strip(f"{WORD_START}\n ") if normalizer else part
            if not raw or not any(map(_is_word, written)) or (self.whole and not _is_word(written)):
                yield from ((name, word, part) for name in names)
                continue
            for letter in [written] if self.whole else written:
                if _is_word(letter):
                    self.letters[letter] = names if _BYTE.fullmatch(names[0]) else (self.unknown,)
                yield letter if _is_word(letter) else self.unknown, word, letter

    def can_add(self, word: str) -> bool:
        """Return whether all characters of a word have a token or can get one, and it is no added token itself."""
        tokens = (token for token, *_ in self._tokens(f" {word}"))
        return word not in self.added and all(token in self.known or token in self.letters for token in tokens)

    def whole_word(self, word: str) -> NewPiece | None:
        """Return the token that a WordPiece gets for a word; None if it has one."""
        tokens = tuple(token for token, *_ in self._tokens(word))
        name = "".join(token.removeprefix(_CONTINUED) for token in tokens)
        if not name or name in self.known:
            return None
        parts = tuple(chain.from_iterable(self.letters.get(token, (token,)) for token in tokens))
        return NewPiece(name, parts, is_isolated(tokens) or is_isolated((name,)))

    def _is_raw(self, token: str) -> bool:
        return token not in self.known or bool(_BYTE.fullmatch(token))


def is_isolated(run: Run) -> bool:
    """Return whether a WordPiece cuts these characters as words of their own, as it does Chinese."""
    return all(map(_is_alone, run))


def _is_alone(token: str) -> bool:
    return len(token) == 1 and unicodedata.category(token) == "Lo"


def _is_word(part: str) -> bool:
    # The mark of a word's start may be a token without characters; vowels of some scripts are marks.
    return all(each.isalnum() or unicodedata.category(each)[0] == "M" for each in part)


def find_pieces(
    counts: WordCounts, cutter: Cutter, most: int, taken: Iterable[str] = (), listed: Sequence[str] = ()
) -> list[NewPiece]:
    """Return the pieces of a text that save most tokens, best first, after those of ``listed`` words, however rare.

    ``cutter`` has cut the words ``counts``. There are at most ``most`` pieces, unless the listed words need more; none
    is named as a token in ``taken``.
    """
    listed = [word for word in listed if cutter.can_add(word)]
    if cutter.whole:
        of_list = filter(None, (cutter.whole_word(word) for word in listed))
        found = {piece.name: piece for piece in of_list}
        for piece in _words_and_isolated(counts, cutter, taken):
            if len(found) >= most:
                break
            found.setdefault(piece.name, piece)
        return list(found.values())
    runs = dict.fromkeys((run for word in listed for run in cutter(word, any_character=True)), 1)
    of_listed = _Pairs(runs, cutter.letters, taken)
    first = [piece for _, piece in of_listed.best(1)]
    of_text = _Pairs(counts.runs, cutter.letters, taken, counts.documents_of)
    for piece in first:
        of_text.add(piece)
    learned = of_text.best(LEAST, min(LEAST, counts.documents))
    return [*first, *(piece for _, piece in islice(learned, max(0, most - len(first))))]


def _words_and_isolated(counts: WordCounts, cutter: Cutter, taken: Iterable[str]) -> Iterator[NewPiece]:
    """Yield what a WordPiece gets: whole words, and pieces of what it cuts into single characters."""
    documents = min(LEAST, counts.documents)
    words, isolated = [], {}
    for run, number in counts.runs.items():
        if is_isolated(run):
            isolated[run] = number
        elif number >= LEAST and len(counts.documents_of[run]) >= documents:
            name = "".join(part.removeprefix(_CONTINUED) for part in run)
            words.append((-number * max(1, len(run) - 1), NewPiece(name, cutter.letters.get(name, run))))
    pairs = _Pairs(isolated, cutter.letters, taken, counts.documents_of).best(LEAST, documents)
    pieces = ((-number, piece._replace(inside=True)) for number, piece in pairs)
    return (piece for _, piece in heapq.merge(sorted(words), pieces))


class _Pairs:
    """Runs as lists of tokens, with the number of each pair of neighbors, and of each letter without a token.

    Pairs are merged as byte-pair encoding is trained: a merged pair is a token that later pairs may have as a part. Its
    name, that of both parts together, must not be one of ``taken``.
    """

    def __init__(
        self,
        runs: Mapping[Run, int],
        letters: Mapping[str, Run],
        taken: Iterable[str],
        documents_of: Mapping[Run, set[int]] | None = None,
    ) -> None:
        self.letters, self.taken = letters, set(taken)
        self.runs, self.times = [list(run) for run in runs], list(runs.values())
        self.documents = [set() if documents_of is None else documents_of[run] for run in runs]
        self.numbers: Counter[Run] = Counter()
        self.places: dict[Run, set[int]] = defaultdict(set)
        for place in range(len(self.runs)):
            self._count(place, 1)

    def _count(self, place: int, sign: int) -> None:
        run = self.runs[place]
        for part in chain(pairwise(run), ((token,) for token in run if token in self.letters)):
            self.numbers[part] += sign * self.times[place]
            self.places[part].add(place)

    def best(self, least: int, documents: int = 0) -> Iterator[tuple[int, NewPiece]]:
        """Yield letters and pairs, the most frequent first, with their numbers, down to ``least`` in ``documents``."""
        # A letter comes before the pairs that have it, which are no more frequent.
        heap = [(-number, len(parts), parts) for parts, number in self.numbers.items()]
        heapq.heapify(heap)
        while heap:
            number, length, parts = heapq.heappop(heap)
            if -number != self.numbers[parts]:  # merges have taken some; a pair of older tokens never gets more
                heapq.heappush(heap, (-self.numbers[parts], length, parts))
            elif -number < least:
                return
            elif "".join(parts) not in self.taken and self._are_in(parts, documents):
                piece = NewPiece("".join(parts), parts if length > 1 else self.letters[parts[0]])
                yield -number, piece
                for each in self.add(piece):
                    heapq.heappush(heap, (-self.numbers[each], 2, each))

    def _are_in(self, parts: Run, documents: int) -> bool:
        found: set[int] = set()
        for place in self.places[parts] if documents else ():
            run = self.runs[place]
            if any(parts == each for each in pairwise(run)) if len(parts) > 1 else parts[0] in run:
                found |= self.documents[place]
            if len(found) >= documents:
                break
        return len(found) >= documents

    def add(self, piece: NewPiece) -> set[Run]:
        """Merge a pair in all runs, and return the pairs that its token now has with neighbors."""
        self.taken.add(piece.name)
        new: set[Run] = set()
        pair = piece.parts
        for place in list(self.places[pair]) if piece.is_pair else ():
            self._count(place, -1)
            self.runs[place] = list(_merged(self.runs[place], pair))
            self._count(place, 1)
            new.update(each for each in pairwise(self.runs[place]) if piece.name in each)
        return new


def _merged(run: list[str], pair: Run) -> Iterator[str]:
    place = 0
    while place < len(run):
        both = tuple(run[place : place + 2]) == pair
        yield "".join(pair) if both else run[place]
        place += 1 + both
