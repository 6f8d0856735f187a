"""What the outputs of a fine-tuned head stand for: the only place that knows the kinds of answers.

A task says by its ``read_labels`` which kind its head has; training, predictions, the hub interface and exports ask the
object for the rest.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.tasks import TASK_REGISTRY
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.models import label_metrics
from fairseq_maelm.models.label_metrics import OF_CLASSES, OF_NUMBERS, OF_SETS
from fairseq_maelm.text.dictionary import class_names

LABELS_FILE = "label/dict.txt"
"""Path of the label dictionary in a task's folder, and in the folder of its checkpoints."""

# The default positive labels of F1: those of GLUE's tasks with that metric.
_POSITIVE_LABELS = ("1", "entailment")
_SHOWN = 20  # labels that a message names
# fairseq stores class indices behind its special symbols.
_SPECIAL, _EOS = Dictionary().nspecial, Dictionary().eos()


class TextLabel(NamedTuple):
    """The class that a model finds most likely for a text."""

    label: str
    probability: float  # in [0, 1]


@dataclass(frozen=True)
class Labels:
    """Named outputs, one of which is right; each subclass is another kind of answer.

    Scores are a head's outputs <float>[n, outputs]. Targets are the right answers, in the form in which ``found``
    returns the predicted ones: here class indices <int64>[n].
    """

    names: tuple[str, ...]

    # transformers' name of the kind, where it cannot be told from the number of labels.
    problem: ClassVar[str | None] = None
    is_likelihood: ClassVar[bool] = True  # whether the loss is a likelihood, which is logged in bits
    is_exact: ClassVar[bool] = True  # whether an answer is right or wrong, and not right in part or near

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """The index of each name."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of a whole set that are logged, in percent."""
        return ("accuracy",)

    @property
    def separator(self) -> str | None:
        """The character between the labels of an example that may have several."""
        return None

    @property
    def outputs(self) -> int:
        """The number of the head's outputs."""
        return len(self.names)

    def loss(self, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss summed over its terms, in nats; ``weights`` [outputs] are those of the classes.

        A target behind the last class stands for labels that training does not know, and has no loss.
        """
        return F.cross_entropy(scores, target, weights, ignore_index=self.outputs, reduction="sum")

    def found(self, scores: Tensor) -> Tensor:
        """Return the answers: class indices <int64>[n]."""
        return scores.argmax(dim=-1)

    def in_units(self, found: Tensor) -> Tensor:
        """Return answers in the units of the data."""
        return found

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the number of right answers, for the accuracy in training."""
        return (self.found(scores) == target).sum()

    def with_positive(self, label: str) -> "Labels":
        """Return the labels with another positive class of F1, which must be one of two classes."""
        raise ValueError(f"--positive-label {label} must be one of two labels, but the data have {self.described}")

    def balanced_weights(self, targets: NDArray[Any]) -> list[float]:
        """Return weights of the classes by which all have the same sum over targets, whose mean weight is 1."""
        raise ValueError(f"--class-weights balanced is for classes, but the data have {self.described}: omit it")

    @property
    def described(self) -> str:
        """What the data have, for messages."""
        return ", ".join(self.names)

    def to_json(self) -> dict[str, Any]:
        """Return what a prepared folder's manifest says of the labels; ``from_json`` reads it."""
        return {"labels": list(self.names), "scale": None}

    def read(self, prefix: Path) -> NDArray[Any] | None:
        """Return the targets of a prepared split, ``PREFIX.idx`` with its .bin; None if it has no labels."""
        if not prefix.with_name(f"{prefix.name}.idx").is_file():
            return None
        read_index(str(prefix))
        rows = [tokens.numpy() for tokens in MMapIndexedDataset(str(prefix))]
        return self.targets([row[row != _EOS] - _SPECIAL for row in rows], f"{prefix}.idx")

    def targets(self, rows: Sequence[NDArray[np.int64]], place: str) -> NDArray[Any]:
        """Return the targets of rows of class indices; ``place`` is their file, for error messages."""
        if any(len(row) != 1 for row in rows):
            raise ValueError(f"{place} has rows with none or several labels, but here each row needs exactly one")
        return np.array(rows, dtype=np.int64)[:, 0]

    def to_config(self) -> dict[str, Any]:
        """Return what the config.json of an exported folder says of the labels."""
        return {
            "id2label": {str(number): name for number, name in enumerate(self.names)},
            "label2id": {name: number for number, name in enumerate(self.names)},
            **({} if self.problem is None else {"problem_type": self.problem}),
        }

    def accepts(self, label: str) -> bool:
        """Return whether a table's cell can be a label."""
        return label in self.numbers

    def check(self, label: str, place: str) -> None:
        """Raise a CorpusError if ``label``, in the row ``place``, is none of the labels."""
        if not self.accepts(label):
            raise CorpusError(
                f"{place} has the label {label!r}, but the known labels are {self.known}: correct it, or remove the row"
            )

    @property
    def known(self) -> str:
        """The first labels, for messages."""
        return ", ".join(map(repr, self.names[:_SHOWN]))

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, in the scores' data type."""
        return scores.log_softmax(dim=-1)


@dataclass(frozen=True)
class Classes(Labels):
    """One of several classes; ``positive`` is the one that F1 counts, if there is one."""

    positive: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of a whole set; F1 needs a positive class."""
        return OF_CLASSES[: 2 if self.positive is None else 3]

    def measure(self, right: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
        """Return ``metrics`` of targets and answers [n]."""
        positive = None if self.positive is None else self.numbers[self.positive]
        return label_metrics.of_classes(self.metrics, right, found, positive)

    def with_positive(self, label: str) -> "Labels":
        """Return the classes with another positive one."""
        fits = len(self.names) == 2 and label in self.names
        return replace(self, positive=label) if fits else super().with_positive(label)

    def balanced_weights(self, targets: NDArray[np.int64]) -> list[float]:
        """Return the weight of each class."""
        counts = np.bincount(targets, minlength=self.outputs)
        return [len(targets) / (len(counts) * max(1, count)) for count in counts.tolist()]

    @property
    def columns(self) -> list[str]:
        """The names of the columns of ``cells``."""
        return ["label", "probability", *(f"P({name})" for name in self.names)]

    def target(self, label: Any, place: str) -> Any:
        """Return a row's label as in ``found``; raise a CorpusError for an unknown one."""
        self.check(label, place)
        return self.numbers[label]

    def named(self, found: Iterable[Any]) -> list[Any]:
        """Return the names of answers."""
        return [self.names[int(number)] for number in found]

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probability of each label <float64>[n, labels]."""
        return scores.double().softmax(dim=-1)

    def answers(self, scores: Tensor) -> list[Any]:
        """Return the answers for Python."""
        likely, best = self.probabilities(scores).max(dim=-1)
        return [TextLabel(*each) for each in zip(self.named(best), likely.tolist(), strict=True)]

    def submitted(self, scores: Tensor, scale: float | None) -> list[str]:
        """Return the answers as GLUE's server reads them; ``scale`` is that of the data."""
        return self.named(self.found(scores))

    def cells(self, scores: Tensor) -> list[list[str]]:
        """Return the answers for a table, a list of cells for each row."""
        rows = zip(self.answers(scores), self.probabilities(scores).tolist(), strict=True)
        return [[label, *(f"{each:.4f}" for each in (best, *row))] for (label, best), row in rows]


@dataclass(frozen=True)
class Sets(Classes):
    """Any number of labels, which ``separator`` separates in a table."""

    separator: str = ";"
    problem = "multi_label_classification"
    metrics = OF_SETS
    is_exact = False
    described = "rows with any number of labels"
    with_positive, balanced_weights = Labels.with_positive, Labels.balanced_weights

    def to_json(self) -> dict[str, Any]:
        """Add the separator."""
        return {**super().to_json(), "label_separator": self.separator}

    def loss(self, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the binary cross-entropy, summed over examples and labels."""
        return F.binary_cross_entropy_with_logits(scores, target.float(), reduction="sum")

    def measure(self, right: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
        """Return ``metrics`` of sets [n, labels]."""
        return label_metrics.of_sets(right, found)

    def targets(self, rows: Sequence[NDArray[np.int64]], place: str) -> NDArray[np.bool_]:
        """Return sets <bool>[rows, labels]."""
        found = np.zeros((len(rows), self.outputs), dtype=np.bool_)
        for number, row in enumerate(rows):
            found[number, row] = True
        return found

    @property
    def columns(self) -> list[str]:
        """The first column has all labels with a probability of at least 0.5."""
        return ["labels", *super().columns[2:]]

    def target(self, label: Any, place: str) -> Any:
        """Return whether a row has each label, as in ``found``."""
        for name in label:
            self.check(name, place)
        return [name in label for name in self.names]

    def found(self, scores: Tensor) -> Tensor:
        """Return the answers: sets <bool>[n, labels]."""
        return scores >= 0

    def named(self, found: Iterable[Any]) -> list[Any]:
        """Return the tuple of each set's names."""
        return [tuple(name for name, there in zip(self.names, row, strict=True) if there) for row in found]

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probability of each label <float64>[n, labels], which do not add up to 1."""
        return scores.double().sigmoid()

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the probabilities."""
        return torch.nn.functional.logsigmoid(scores)

    def answers(self, scores: Tensor) -> list[Any]:
        """Return the labels of each text, with their probabilities."""
        rows = zip(self.found(scores), self.probabilities(scores).tolist(), strict=True)
        return [
            [TextLabel(*each) for each, there in zip(zip(self.names, row), chosen) if there] for chosen, row in rows
        ]

    def cells(self, scores: Tensor) -> list[list[str]]:
        """Return the cells of each row: its labels, and the probabilities of all labels."""
        rows = zip(self.named(self.found(scores)), self.probabilities(scores).tolist(), strict=True)
        return [[self.separator.join(names), *(f"{each:.4f}" for each in row)] for names, row in rows]


@dataclass(frozen=True)
class Numbers(Labels):
    """A number between ``bounds``, which was divided by ``scale`` for training; None if that is unknown."""

    names: tuple[str, ...] = ("LABEL_0",)
    scale: float | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    problem = "regression"
    is_likelihood = is_exact = False
    metrics = OF_NUMBERS
    columns = ("value",)
    described = "numbers"

    def to_json(self) -> dict[str, Any]:
        """Return the scale, without names."""
        return {"labels": None, "scale": self.scale}

    def loss(self, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum of squared errors."""
        return F.mse_loss(scores.view(-1), target.float(), reduction="sum")

    def measure(self, right: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
        """Return ``metrics`` of numbers [n]."""
        return label_metrics.of_numbers(self.metrics, right, found)

    def read(self, prefix: Path) -> NDArray[np.float32] | None:
        """Return the numbers in ``PREFIX.label``."""
        file = prefix.with_name(f"{prefix.name}.label")
        return np.loadtxt(file, dtype=np.float32, ndmin=1) if file.is_file() else None

    def accepts(self, label: str) -> bool:
        """Return whether a cell is a finite number between the bounds."""
        try:
            number = float(label)
        except ValueError:
            return False
        return math.isfinite(number) and self.bounds[0] <= number <= self.bounds[1]

    @property
    def known(self) -> str:
        """What is accepted, for messages."""
        limits = "" if math.isinf(self.bounds[1]) else " from {:g} to {:g}".format(*self.bounds)
        return f"finite numbers{limits}"

    def target(self, label: Any, place: str) -> Any:
        """Return a row's number."""
        self.check(label, place)
        return float(label)

    def submitted(self, scores: Tensor, scale: float) -> list[str]:
        """Return numbers in [0, ``scale``]; fairseq's own task does not keep the scale."""
        values = replace(self, scale=self.scale or scale).in_units(self.found(scores))
        return [f"{value:.3f}" for value in values.clamp(0.0, scale).tolist()]

    def found(self, scores: Tensor) -> Tensor:
        """Return the numbers <float>[n]."""
        return scores[:, 0]

    def in_units(self, found: Tensor) -> Tensor:
        """Multiply numbers by the scale."""
        return found * (self.scale or 1.0)

    def named(self, found: Iterable[Any]) -> list[Any]:
        """Return no names: numbers have none."""
        return []

    def answers(self, scores: Tensor) -> list[Any]:
        """Return the numbers."""
        return self.in_units(self.found(scores)).tolist()

    def cells(self, scores: Tensor) -> list[list[str]]:
        """Return a cell with the number for each row."""
        return [[f"{value:.6g}"] for value in self.answers(scores)]


@dataclass(frozen=True)
class Spans(Labels):
    """The first and the last token of an answer."""

    names: tuple[str, ...] = ("start", "end")
    version: str = "auto"  # of SQuAD's rules; by "1.1" there always is an answer, and "auto" is unknown
    null_threshold: float = 0.0
    metrics = ()  # the official ones depend on the questions

    def loss(self, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean of the cross-entropies of first and last token <int64>[B, 2] by scores <float>[B, S, 2].

        Targets of -100 have no loss.
        """
        # [2 B, S]: the first and the last token are separate examples.
        sides = scores.transpose(1, 2).flatten(0, 1)
        return 0.5 * F.cross_entropy(sides, target.flatten(), reduction="sum")

    def found(self, scores: Tensor) -> Tensor:
        """Return the likeliest first and last tokens, which may be no answer together."""
        return scores.argmax(dim=1)

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the number of windows with both tokens right."""
        return (self.found(scores) == target).all(dim=1).sum()

    @property
    def threshold(self) -> float:
        """Margin, in logits, by which the score of "no answer" must exceed that of the best answer."""
        return math.inf if self.version == "1.1" else self.null_threshold

    def to_config(self) -> dict[str, Any]:
        """Return the labels and rules of answers."""
        config = super().to_config()
        if self.version != "auto":
            config["squad_version"] = self.version
        if self.version == "2.0":
            config["null_threshold"] = self.null_threshold
        return config


def default_positive(names: Sequence[str]) -> str | None:
    """Return the label that F1 counts by default: "1" or "entailment" if it is one of two labels."""
    return next((label for label in _POSITIVE_LABELS if label in names and len(names) == 2), None)


def from_json(content: Mapping[str, Any], positive: str | None = None) -> Numbers | Classes:
    """Return the labels of a prepared folder's manifest; ``positive`` is the positive class, if it is one of two."""
    if content.get("labels") is None:
        return Numbers(scale=content.get("scale"))
    names, separator = tuple(content["labels"]), content.get("label_separator")
    if separator is not None:
        return Sets(names, separator=separator)
    return Classes(names, positive if positive in names and len(names) == 2 else default_positive(names))


def sentence_labels(config: Any, folders: Sequence[Path]) -> Numbers | Classes:
    """Return the labels of a task on sentences, such as fairseq's own; arguments are those of ``read_labels``."""
    cfg = config.task
    file = next((folder / LABELS_FILE for folder in folders if (folder / LABELS_FILE).is_file()), None)
    is_number = file is None or getattr(cfg, "regression_target", False)
    names = None if is_number else class_names(Dictionary.load(str(file)))
    scale, separator = getattr(cfg, "scale", None), getattr(cfg, "label_separator", None)
    content = {"labels": names, "scale": scale, "label_separator": separator}
    return from_json(content, getattr(getattr(config, "criterion", None), "positive_label", None))


def read_labels(config: Any, folders: Sequence[Path]) -> Labels | None:
    """Return what a task's outputs stand for, as read from one of ``folders``; None for a task without labels."""
    name = config.task._name
    of_fairseq = sentence_labels if name == "sentence_prediction" else None
    reader = getattr(TASK_REGISTRY.get(name), "read_labels", of_fairseq)
    return None if reader is None else reader(config, folders)
