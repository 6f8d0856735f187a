"""The tasks of probes: linear classifiers of a frozen encoder's states, fitted to one split and tested on another."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from fairseq_maelm.analysis.probes.states import POOLINGS, FrozenEncoder, States

logger = logging.getLogger(__name__)

# scikit-learn's C, the inverse strength of the probe's L2 penalty, on standardized features.
INVERSE_PENALTY = 0.1
_ITERATIONS = 200

Row = dict[str, Any]
Rows = NDArray[np.floating[Any]]
# Layer and pooling; None if that does not apply.
Variant = tuple[int | None, str | None]


class Split(NamedTuple):
    """What a probe is fitted to or tested on."""

    inputs: list[Any]  # texts by column, or sentences of words
    labels: NDArray[Any]  # of the texts, or of all words


@dataclass(frozen=True)
class Task:
    """A task with the name of its results and the files that it was read from."""

    name: str
    files: Sequence[Path]
    train: Split
    test: Split
    # ``features_of_texts`` or ``features_of_words``.
    features: "Callable[[Task, FrozenEncoder], Iterator[tuple[Variant, Rows, Rows]]]"

    def measure(self, frozen: FrozenEncoder) -> list[Row]:
        """Return rows of accuracies: set, measure, layer, pooling, value."""
        labels, expected = self.train.labels, self.test.labels
        found: list[tuple[str, Variant, float]] = [
            ("most frequent label", (None, None), most_frequent(labels, expected))
        ]
        for variant, train, test in self.features(self, frozen):
            found.append(("logistic regression", variant, logistic_regression(train, labels, test, expected)))
        return [
            {"set": self.name, "measure": measure, "layer": layer, "pooling": pooling, "value": value}
            for measure, (layer, pooling), value in found
        ]


def features_of_texts(task: Task, frozen: FrozenEncoder) -> Iterator[tuple[Variant, Rows, Rows]]:
    """Yield each layer and pooling with the pooled states of the training texts and of the test texts.

    The texts of a pair are encoded separately; the pair's features are |u - v| and u * v, as in SentEval.
    """
    columns = [*task.train.inputs, *task.test.inputs]
    texts = list(dict.fromkeys(text for column in columns for text in column))
    place_of = {text: place for place, text in enumerate(texts)}
    places = [np.array([place_of[text] for text in column], dtype=np.int64) for column in columns]
    count = len(task.train.inputs)
    for variant, vectors in _variants(frozen, frozen.pooled(texts, task.name), POOLINGS, task.name):
        yield variant, _of_texts(vectors, places[:count]), _of_texts(vectors, places[count:])


def features_of_words(task: Task, frozen: FrozenEncoder) -> Iterator[tuple[Variant, Rows, Rows]]:
    """Yield each layer with the states of the first tokens of the training words and of the test words."""
    states = frozen.first_subwords([*task.train.inputs, *task.test.inputs], task.name)[:, None]
    count = len(task.train.labels)
    for variant, vectors in _variants(frozen, states, [None], task.name):
        yield variant, vectors[:count], vectors[count:]


def _variants(
    frozen: FrozenEncoder, states: States, poolings: Sequence[str | None], title: str
) -> Iterator[tuple[Variant, Rows]]:
    """Yield each layer and pooling of states <float32>[layers, poolings, n, D]."""
    pairs = [(place, number) for place in range(len(frozen.layers)) for number in range(len(poolings))]
    # The first token's embedding is the same in every text.
    pairs = [(place, number) for place, number in pairs if frozen.layers[place] or poolings[number] != "first"]
    for place, number in tqdm(pairs, desc=f"{frozen.name}: {title}", unit=" probes", mininterval=1, leave=False):
        yield (frozen.layers[place], poolings[number]), states[place, number]


def _of_texts(vectors: Rows, places: Sequence[NDArray[np.int64]]) -> Rows:
    if len(places) == 1:
        return vectors[places[0]]
    first, second = (vectors[each].astype(np.float32) for each in places)
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def logistic_regression(train: Rows, labels: NDArray[Any], test: Rows, expected: NDArray[Any]) -> float:
    """Return the test accuracy of a logistic regression fitted to the standardized training rows."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=_ITERATIONS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train.astype(np.float32), labels)
    if any(issubclass(each.category, ConvergenceWarning) for each in caught):
        logger.info("a logistic regression was stopped after %d iterations", _ITERATIONS)
    return float(probe.score(test.astype(np.float32), expected))


def most_frequent(labels: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the accuracy of always predicting the most frequent training label."""
    kinds, counts = np.unique(labels, return_counts=True)
    return float((expected == kinds[counts.argmax()]).mean())
