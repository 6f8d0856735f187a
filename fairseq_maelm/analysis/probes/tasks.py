"""The tasks of probes: each has its texts and labels, and measures a frozen encoder on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.analysis.probes import measures
from fairseq_maelm.analysis.probes.states import POOLINGS, FrozenEncoder, States

Row = dict[str, Any]
# Layer and pooling; None if that does not apply.
Variant = tuple[int | None, str | None]


@dataclass(frozen=True)
class Task(Protocol):
    """A task with the name of its results and the files that it was read from."""

    name: str
    files: Sequence[Path]

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """Return result rows: set, measure, layer, pooling, value."""


def _row(name: str, measure: str, value: float, variant: Variant = (None, None)) -> Row:
    layer, pooling = variant
    return {"set": name, "measure": measure, "layer": layer, "pooling": pooling, "value": value}


def _variants(
    frozen: FrozenEncoder, states: States, poolings: Sequence[str | None], title: str
) -> Iterator[tuple[Variant, measures.Rows]]:
    """Yield each layer and pooling of states <float32>[layers, poolings, n, D]."""
    pairs = [(place, number) for place in range(len(frozen.layers)) for number in range(len(poolings))]
    # The first token's embedding is the same in every text.
    pairs = [(place, number) for place, number in pairs if frozen.layers[place] or poolings[number] != "first"]
    for place, number in tqdm(pairs, desc=f"{frozen.name}: {title}", unit=" probes", mininterval=1, leave=False):
        yield (frozen.layers[place], poolings[number]), states[place, number]


def _unique(columns: Sequence[Sequence[str]]) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Return the distinct texts and, for each column, the index of each of its texts in that list."""
    texts = list(dict.fromkeys(text for column in columns for text in column))
    place_of = {text: place for place, text in enumerate(texts)}
    return texts, [np.array([place_of[text] for text in column], dtype=np.int64) for column in columns]


class Labeled(NamedTuple):
    """Texts or text pairs, by column, with their class ids."""

    columns: list[list[str]]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Classification(Task):
    """Validation accuracy of probes that were fitted to the training split.

    The texts of a pair are encoded separately; the pair's features are |u - v| and u * v, as in SentEval.
    """

    train: Labeled
    test: Labeled

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        texts, places = _unique([*self.train.columns, *self.test.columns])
        train, test = places[: len(self.train.columns)], places[len(self.train.columns) :]
        labels, expected = self.train.labels, self.test.labels
        rows = [_row(self.name, "most frequent label", measures.most_frequent(labels, expected))]
        for variant, vectors in _variants(frozen, frozen.pooled(texts, self.name), POOLINGS, self.name):
            data = _features(vectors, train), labels, _features(vectors, test), expected
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
    """Accuracy of a linear probe on the state of each word's first token."""

    train: Tagged
    test: Tagged

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """See ``Task``."""
        states = frozen.first_subwords([*self.train.sentences, *self.test.sentences], self.name)[:, None]
        count, labels, expected = len(self.train.tags), self.train.tags, self.test.tags
        rows = [_row(self.name, "most frequent label", measures.most_frequent(labels, expected))]
        for variant, vectors in _variants(frozen, states, [None], self.name):
            value = measures.logistic_regression(vectors[:count], labels, vectors[count:], expected)
            rows.append(_row(self.name, "logistic regression", value, variant))
        return rows
