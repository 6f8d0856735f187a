"""What the outputs of a fine-tuned head stand for: the only place that knows the kinds of answers.

A task says by its ``read_labels`` which kind its head has; training, predictions, the hub interface and exports ask the
object for the rest.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.text.dictionary import class_names

LABELS_FILE = "label/dict.txt"
"""Path of the label dictionary in a task's folder, and in the folder of its checkpoints."""

# The default positive labels of F1: those of GLUE's tasks with that metric.
_POSITIVE_LABELS = ("1", "entailment")
# Number of labels to name in a message.
_SHOWN = 20


class TextLabel(NamedTuple):
    """The class that a model finds most likely for a text.

    Attributes:
        label: name of the class.
        probability: probability of the class, in [0, 1].
    """

    label: str
    probability: float


@dataclass(frozen=True)
class Labels:
    """Named outputs; each subclass is a kind of answer. Scores are a head's outputs <float>[n, outputs]."""

    names: tuple[str, ...]

    # transformers' name of the kind, where it cannot be told from the number of labels.
    problem: ClassVar[str | None] = None

    def to_config(self) -> dict[str, Any]:
        """Return what the config.json of an exported folder says of the labels."""
        return {
            "id2label": {str(number): name for number, name in enumerate(self.names)},
            "label2id": {name: number for number, name in enumerate(self.names)},
            **({} if self.problem is None else {"problem_type": self.problem}),
        }

    def accepts(self, label: str) -> bool:
        """Return whether a table's cell can be a label."""
        return label in self.names

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
    def positive_class(self) -> int | None:
        """The index of the positive class."""
        return None if self.positive is None else self.names.index(self.positive)

    @property
    def columns(self) -> list[str]:
        """The names of the columns of ``cells``."""
        return ["label", "probability", *(f"P({name})" for name in self.names)]

    def target(self, label: Any, place: str) -> Any:
        """Return a row's label as in ``found``; raise a CorpusError for an unknown one."""
        self.check(label, place)
        return self.names.index(label)

    def found(self, scores: Tensor) -> Tensor:
        """Return the answers: class indices <int64>[n]."""
        return scores.argmax(dim=-1)

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

    def cells(self, scores: Tensor) -> list[list[str]]:
        """Return the answers for a table, a list of cells for each row."""
        rows = zip(self.answers(scores), self.probabilities(scores).tolist(), strict=True)
        return [[label, *(f"{each:.4f}" for each in (best, *row))] for (label, best), row in rows]


@dataclass(frozen=True)
class Sets(Classes):
    """Any number of labels, which ``separator`` separates in a table."""

    separator: str = ";"
    problem = "multi_label_classification"

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
    """A number, which was divided by ``scale`` for training; None if that is unknown."""

    names: tuple[str, ...] = ("LABEL_0",)
    scale: float | None = None
    problem = "regression"
    positive_class = None
    columns = ("value",)
    known = "numbers"

    def accepts(self, label: str) -> bool:
        """Return whether a cell is a finite number."""
        try:
            return math.isfinite(float(label))
        except ValueError:
            return False

    def target(self, label: Any, place: str) -> Any:
        """Return a row's number."""
        self.check(label, place)
        return float(label)

    def found(self, scores: Tensor) -> Tensor:
        """Return the numbers <float>[n], in the units of the data."""
        return scores[:, 0] * (self.scale or 1.0)

    def named(self, found: Iterable[Any]) -> list[Any]:
        """Return no names: numbers have none."""
        return []

    def answers(self, scores: Tensor) -> list[Any]:
        """Return the numbers."""
        return self.found(scores).tolist()

    def cells(self, scores: Tensor) -> list[list[str]]:
        """Return a cell with the number for each row."""
        return [[f"{value:.6g}"] for value in self.found(scores).tolist()]


@dataclass(frozen=True)
class Spans(Labels):
    """The first and the last token of an answer."""

    names: tuple[str, ...] = ("start", "end")
    version: str = "auto"  # of SQuAD's rules; by "1.1" there always is an answer, and "auto" is unknown
    null_threshold: float = 0.0

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


def sentence_labels(config: Any, folders: Sequence[Path]) -> Labels:
    """Return the labels of a task on sentences, such as fairseq's own; arguments are those of ``read_labels``."""
    cfg = config.task
    file = next((folder / LABELS_FILE for folder in folders if (folder / LABELS_FILE).is_file()), None)
    if file is None or getattr(cfg, "regression_target", False):
        return Numbers(scale=getattr(cfg, "scale", None))
    names, separator = tuple(class_names(Dictionary.load(str(file)))), getattr(cfg, "label_separator", None)
    if separator is not None:
        return Sets(names, separator=separator)
    wanted = getattr(getattr(config, "criterion", None), "positive_label", None)
    return Classes(names, wanted if wanted in names and len(names) == 2 else default_positive(names))


def read_labels(config: Any, folders: Sequence[Path]) -> Labels | None:
    """Return what the outputs of a task's head stand for; None for a task without labels, such as pretraining.

    Args:
        config: a checkpoint's configuration.
        folders: folders in which to look for the labels, such as those of the data and of the checkpoint.
    """
    name = config.task._name
    of_fairseq = sentence_labels if name == "sentence_prediction" else None
    reader = getattr(TASK_REGISTRY.get(name), "read_labels", of_fairseq)
    return None if reader is None else reader(config, folders)
