"""The tasks of probes: each has its texts and labels, and measures a frozen encoder on them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.analysis.probes import measures
from fairseq_maelm.analysis.probes.states import POOLINGS, FrozenEncoder, States
from fairseq_maelm.analysis.spectrum import effective_rank, singular_values

logger = logging.getLogger(__name__)

Row = dict[str, Any]
# Layer, pooling, and whether states were whitened; None if that does not apply.
Variant = tuple[int | None, str | None, bool | None]


@dataclass(frozen=True)
class Task(Protocol):
    """A task with the name of its results and the files that it was read from."""

    name: str
    files: Sequence[Path]

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """Return result rows: set, measure, layer, pooling, whitened, value."""


def _row(name: str, measure: str, value: float, variant: Variant = (None, None, None)) -> Row:
    layer, pooling, whitened = variant
    return {"set": name, "measure": measure, "layer": layer, "pooling": pooling, "whitened": whitened, "value": value}


def _variants(
    frozen: FrozenEncoder, states: States, poolings: Sequence[str | None], fit: Any, title: str
) -> Iterator[tuple[Variant, measures.Rows]]:
    """Yield each layer and pooling of states <float32>[layers, poolings, n, D], unchanged and then whitened.

    Whitening is fitted to the rows ``fit``.
    """
    pairs = [(place, number) for place in range(len(frozen.layers)) for number in range(len(poolings))]
    # The first token's embedding is the same in every text.
    pairs = [(place, number) for place, number in pairs if frozen.layers[place] or poolings[number] != "first"]
    for place, number in tqdm(pairs, desc=f"{frozen.name}: {title}", unit=" probes", mininterval=1, leave=False):
        rows = states[place, number]
        yield (frozen.layers[place], poolings[number], False), rows
        yield (frozen.layers[place], poolings[number], True), measures.fit_whitening(rows[fit]).apply(rows)


def _unique(columns: Sequence[Sequence[str]]) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Return the distinct texts and, for each column, the index of each of its texts in that list."""
    texts = list(dict.fromkeys(text for column in columns for text in column))
    place_of = {text: place for place, text in enumerate(texts)}
    return texts, [np.array([place_of[text] for text in column], dtype=np.int64) for column in columns]


class Pairs(NamedTuple):
    """Text pairs with similarity scores."""

    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Similarity(Task):
    """Rank correlation between text pairs' cosines and scores, without training.

    With ``together`` the parts form one set, such as a year of STS, with two results: the correlation over all pairs,
    and the mean of the parts' correlations. Otherwise each part is a set. Whitening is fitted to all texts of the task.
    """

    parts: dict[str, Pairs]
    together: bool

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        texts, places = _unique([column for part in self.parts.values() for column in part[:2]])
        firsts, seconds = places[::2], places[1::2]
        scores = [part.scores for part in self.parts.values()]
        rows = []
        states = frozen.pooled(texts, self.name)
        for variant, vectors in _variants(frozen, states, POOLINGS, slice(None), self.name):
            found = [measures.spearman(vectors[a], vectors[b], c) for a, b, c in zip(firsts, seconds, scores)]
            if not self.together:
                rows += [_row(part, "Spearman", value, variant) for part, value in zip(self.parts, found)]
                continue
            whole = vectors[np.concatenate(firsts)], vectors[np.concatenate(seconds)], np.concatenate(scores)
            rows.append(_row(self.name, "Spearman", measures.spearman(*whole), variant))
            if len(found) > 1:
                rows.append(_row(self.name, "Spearman, mean of parts", float(np.mean(found)), variant))
        return rows


class Labeled(NamedTuple):
    """Texts or text pairs, by column, with their class ids."""

    columns: list[list[str]]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Classification(Task):
    """Validation accuracy of probes that were fitted to the training split.

    The texts of a pair are encoded separately; the pair's features are |u - v| and u * v, as in SentEval. Whitening is
    fitted to the texts of the training split.
    """

    train: Labeled
    test: Labeled

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        texts, places = _unique([*self.train.columns, *self.test.columns])
        train, test = places[: len(self.train.columns)], places[len(self.train.columns) :]
        labels, expected = self.train.labels, self.test.labels
        rows = [_row(self.name, "most frequent label", measures.most_frequent(labels, expected))]
        states, fit = frozen.pooled(texts, self.name), np.unique(np.concatenate(train))
        for variant, vectors in _variants(frozen, states, POOLINGS, fit, self.name):
            data = _features(vectors, train), labels, _features(vectors, test), expected
            rows.append(_row(self.name, "1-nearest neighbor", measures.nearest_neighbor(*data), variant))
            rows.append(_row(self.name, "logistic regression", measures.logistic_regression(*data), variant))
        return rows


def _features(vectors: measures.Rows, places: Sequence[NDArray[np.int64]]) -> measures.Rows:
    if len(places) == 1:
        return vectors[places[0]]
    first, second = (vectors[each].astype(np.float32) for each in places)
    return np.concatenate([np.abs(first - second), first * second], axis=1)


class Tagged(NamedTuple):
    """Sentences of words, and the tags of all words."""

    sentences: list[tuple[str, ...]]
    tags: NDArray[np.str_]


@dataclass(frozen=True)
class Tagging(Task):
    """Accuracy of a linear probe on the state of each word's first token; whitening is fitted to the training words."""

    train: Tagged
    test: Tagged

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        states = frozen.first_subwords([*self.train.sentences, *self.test.sentences], self.name)[:, None]
        count, labels, expected = len(self.train.tags), self.train.tags, self.test.tags
        rows = [_row(self.name, "most frequent label", measures.most_frequent(labels, expected))]
        for variant, vectors in _variants(frozen, states, [None], slice(count), self.name):
            value = measures.logistic_regression(vectors[:count], labels, vectors[count:], expected)
            rows.append(_row(self.name, "logistic regression", value, variant))
        return rows


@dataclass(frozen=True)
class TokenStates(Task):
    """Effective rank and mean cosine over all token states, special symbols included."""

    passages: list[list[str]]
    tau: float

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        grams, sums = frozen.token_sums([frozen.encode(" ".join(words)) for words in self.passages], self.name)
        rows = []
        for layer, gram, total in zip(frozen.layers, grams, sums):
            rank = effective_rank(singular_values(gram.gram()), self.tau)
            rows.append(_row(self.name, "effective rank", rank, (layer, None, False)))
            rows.append(_row(self.name, "mean cosine", measures.mean_cosine(total, gram.rows), (layer, None, False)))
        return rows


@dataclass(frozen=True)
class Search(Task):
    """Given the first words of a passage as a query, find its last words among the last words of all passages.

    Effective rank (centered) and mean cosine are computed for the last words. Whitening is fitted to first and last
    words.
    """

    passages: list[list[str]]
    short: int  # number of first words
    tau: float

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        texts = [" ".join(words[: self.short]) for words in self.passages]
        texts += [" ".join(words[self.short :]) for words in self.passages]
        count, rows = len(self.passages), []
        for variant, vectors in _variants(frozen, frozen.pooled(texts, self.name), POOLINGS, slice(None), self.name):
            queries, found = vectors[:count], vectors[count:]
            rows.append(_row(self.name, "reciprocal rank", measures.reciprocal_rank(queries, found), variant))
            if variant[2]:
                continue
            wide = found.astype(np.float64)
            spread = torch.from_numpy(np.linalg.svd(wide - wide.mean(axis=0), compute_uv=False))
            rows.append(_row(self.name, "effective rank", effective_rank(spread, self.tau), variant))
            cosine = measures.mean_cosine(measures.normalized(wide).sum(axis=0), count)
            rows.append(_row(self.name, "mean cosine", cosine, variant))
        return rows


class Repetition(NamedTuple):
    """A passage with a word that occurs more than once."""

    words: list[str]
    place: int  # position of the occurrence to predict
    replaced: list[str]  # the passage with all other occurrences replaced by other words

    @property
    def occurrences(self) -> NDArray[np.int64]:
        """The positions <int64>[n] of the word, n >= 2."""
        return np.array([place for place, word in enumerate(self.words) if word == self.words[self.place]])


@dataclass(frozen=True)
class RepeatedWords(Task):
    """Prediction of a masked word with and without its other occurrences in the text.

    A word is matched if the LM head predicts all of its tokens. Models without an LM head have no rows.
    """

    cases: list[Repetition]

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        repeated = self._predict(frozen, [case.words for case in self.cases])
        replaced = self._predict(frozen, [case.replaced for case in self.cases])
        if repeated is None or replaced is None or not (both := repeated[2] & replaced[2]).any():
            return []
        if not both.all():
            logger.info(
                "%s: %d of %d repetitions fit into one sequence; others are left out",
                frozen.name,
                both.sum(),
                len(both),
            )
        (with_it, bits, _), (without, more_bits, _) = repeated, replaced
        return [
            _row(self.name, "matched", float(with_it[both].mean())),
            _row(self.name, "matched without the repetition", float(without[both].mean())),
            _row(self.name, "bits gained by the repetition", float((more_bits - bits)[both].mean())),
        ]

    def _predict(self, frozen: FrozenEncoder, texts: Sequence[list[str]]) -> tuple[NDArray[Any], ...] | None:
        """Return, for each case, whether its word was predicted, its loss in bits, and whether it could be tested."""
        encoded = frozen.encode_words(texts)
        offsets = np.cumsum([0, *map(len, texts[:-1])])
        asked = encoded.places[offsets + [case.place for case in self.cases]]
        # A long passage may have its occurrences in different sequences.
        together = [
            (encoded.places[offset + case.occurrences, 0] == sequence).all()
            for offset, case, sequence in zip(offsets, self.cases, asked[:, 0])
        ]
        usable = np.array(together) & (asked[:, 2] > asked[:, 1])
        right, losses = np.zeros(len(texts), dtype=bool), np.zeros(len(texts))
        chosen = np.flatnonzero(usable)
        sequences = [encoded.sequences[asked[case, 0]].copy() for case in chosen]
        targets = [row[start:end].copy() for row, (_, start, end) in zip(sequences, asked[chosen])]
        for row, (_, start, end) in zip(sequences, asked[chosen]):
            row[start:end] = frozen.encoder.vocabulary.mask
        for places, _ in frozen.batches(sequences, self.name):
            with torch.inference_mode(), frozen.computing():
                logits = frozen.encoder.masked_logits([sequences[place] for place in places])
            if logits is None:
                return None
            expected = torch.from_numpy(np.concatenate([targets[place] for place in places])).to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits.float(), expected, reduction="none") / np.log(2)
            hit = logits.argmax(dim=1) == expected
            sizes = [len(targets[place]) for place in places]
            for place, own, bits in zip(places, hit.split(sizes), loss.split(sizes)):
                right[chosen[place]], losses[chosen[place]] = bool(own.all()), float(bits.sum())
        return right, losses, usable
