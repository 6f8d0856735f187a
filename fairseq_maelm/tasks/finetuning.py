"""What all fine-tuning tasks and criterions share: a head, the loss of its labels, and metrics of a whole set.

A kind of task says what its ``Labels`` are, how it opens a split, and which of the model's outputs are scores; the rest
is here. Some metrics of a validation set are no means over its batches, such as F1, correlations and exact match: the
criterion puts the predictions of a batch into its logging output, fairseq gathers the logging outputs of all ranks, and
the task collects them by example, so that an example that occurs in two batches counts once. The metrics are computed
when validation ends. They are in percent. An undefined metric (no positive examples or predictions, or constant values)
is 0, so that a model with constant predictions ranks last.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.fairseq_fixes.private import DerivedMeter, remember
from fairseq_maelm.models.labels import Labels
from fairseq_maelm.tasks.encoder_task import EncoderTask
from fairseq_maelm.text.dictionary import load_dictionary

logger = logging.getLogger(__name__)

_KEY = "_collected"  # fairseq does not print metrics whose names begin with an underscore
# Values have few bytes, because fairseq limits the size of the logging outputs that ranks exchange.
_EXCHANGED = {"f": np.float32, "i": np.int32}


class FineTuningTask(EncoderTask):
    """A task that trains the encoder with a head, whose outputs stand for ``labels``.

    A subclass defines ``name``, ``read_labels`` and ``open_examples``.
    """

    head: ClassVar[str]  # its name in checkpoints
    vocabulary: ClassVar[str] = "."  # folder of the vocabulary in the prepared folder

    open_examples: Callable[[str, bool], BatchDataset]  # (split, training) -> the split in the folder

    def __init__(self, cfg: Any, dictionary: Dictionary, labels: Any) -> None:
        longest = getattr(cfg, self.length_option.removeprefix("--").replace("-", "_"))
        # Without the option ``build_model`` sets the limit; fairseq builds the model before it opens any data.
        super().__init__(cfg, dictionary, longest or 0)
        self.labels = labels

    @staticmethod
    def read_labels(config: Any, folders: Sequence[Path]) -> Any:
        """Return what the head's outputs stand for; see ``fairseq_maelm.models.labels.read_labels``."""
        return None

    @classmethod
    def facts(cls, cfg: Any) -> dict[str, Any]:
        """Return options that the prepared folder decides; checkpoints keep them."""
        return {}

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> "FineTuningTask":
        """Load the vocabulary and the labels, and build the task; called by fairseq."""
        if not from_checkpoint and (facts := cls.facts(cfg)):
            remember(cfg, **facts)
        dictionary = load_dictionary(str(Path(cfg.data, cls.vocabulary)))
        return cls(cfg, dictionary, cls.read_labels(SimpleNamespace(task=cfg), [Path(cfg.data)]))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and add the head; called by fairseq."""
        model = super().build_model(cfg, from_checkpoint)
        self.longest = self.longest or model.max_positions()
        self.add_head(model)
        return model

    def add_head(self, model: Any) -> None:
        """Add a head with an output for each label, by default one that reads the first token."""
        model.register_classification_head(self.head, self.labels.outputs)

    def open_split(self, split: str, training: bool, *unused: Any) -> BatchDataset:
        """Open a split, and log what it has."""
        return announced(split, self.open_examples(split, training))

    def scores(self, model: Any, sample: Mapping[str, Any]) -> Tensor:
        """Return the scores <float32> of a batch's examples, in the form that ``labels`` reads."""
        scores, _ = model(**sample["net_input"], features_only=True, classification_head_name=self.head)
        return scores.float()

    def found(self, sample: Mapping[str, Any], scores: Tensor) -> dict[str, Any]:
        """Return what validation collects of a batch: arrays <int32, float32 or uint8>, sets as packed bits."""
        columns = {"id": sample["id"], "right": sample["target"], "found": self.labels.found(scores)}
        arrays = {name: column.cpu().numpy() for name, column in columns.items()}
        return {
            name: np.packbits(each, axis=-1) if each.dtype == np.bool_ else each.astype(_EXCHANGED[each.dtype.kind])
            for name, each in arrays.items()
        }

    def rows(self, found: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
        """Yield pairs (key, values) from ``found``, one for each example."""
        columns: Any = (found["right"], found["found"])
        if found["right"].dtype == np.uint8:
            columns = (np.unpackbits(each, axis=-1, count=self.labels.outputs) for each in columns)
        return zip(found["id"].tolist(), zip(*columns))

    def measure(self, rows: Mapping[Any, Any], labels: Any) -> Mapping[str, float]:
        """Return the labels' metrics of collected rows."""
        right, found = (np.array(column) for column in zip(*(rows[key] for key in sorted(rows))))
        return labels.measure(right, found)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Log the criterion's metrics and, in validation, those of the whole set; called by fairseq."""
        super().reduce_metrics(logging_outputs, criterion)
        if found := [output["found"] for output in logging_outputs if "found" in output]:
            self.log_found(found, criterion.labels)

    def log_found(self, found: Sequence[Mapping[str, Any]], labels: Labels) -> None:
        """Log the metrics of a whole set, from what ``found`` returned for batches of all ranks."""
        rows = [row for each in found for row in self.rows(each)]
        log_collected(rows, lambda collected: self.measure(collected, labels), labels.metrics)


def announced(name: str, dataset: Any) -> Any:
    """Log what a dataset has, and what is lost of its data; return it."""
    logger.info("%s: %s", name, dataset.described)
    for warning in dataset.warnings:
        logger.warning("%s: %s", name, warning)
    return dataset


@dataclass
class NoOptions(FairseqDataclass):
    """No options. Without this class, fairseq would store the whole command line in checkpoints."""


class FineTuningCriterion(FairseqCriterion):
    """The loss of a task's labels, summed over examples, words or windows; fairseq divides gradients by their number.

    It logs the mean ``loss``, in bits if it is a likelihood, and the percentage of right answers in training. The
    task logs the metrics of a whole validation set.
    """

    # Name of the percentage of right answers; where no metric of the whole set has this name, validation logs it too.
    accuracy: ClassVar[str] = "accuracy"

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(task)
        self.labels = task.labels
        # Weights of the classes in training. Not a buffer, which half precision would round.
        self.class_weights: list[float] | None = None

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss of a batch, the number of its terms, and the values to log.

        There is a term for each target, or as many as ``terms`` says. Targets and scores are those of ``Labels``.
        """
        if "target" not in sample:
            raise ValueError("this split has no labels to validate on: use `maelm predict`")
        labels, target, scores = self.labels, sample["target"], self.task.scores(model, sample)
        # Validation shows the loss on the data as they are.
        weights = None if self.class_weights is None or not model.training else scores.new_tensor(self.class_weights)
        loss, size = labels.loss(scores, target, weights), sample.get("terms", target.numel())
        output = {"loss": loss.detach(), "sample_size": size, "is_likelihood": labels.is_likelihood}
        output |= {name: sample[name] for name in ("ntokens", "nsentences")}
        if self.accuracy and labels.is_exact and (model.training or self.accuracy not in labels.metrics):
            output["ncorrect"] = labels.correct(scores, target)
        if not model.training:
            output["found"] = self.task.found(sample, scores)
        return loss, size, output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum the metrics of all batches and ranks, and log them; called by fairseq."""
        size, loss, correct = (
            sum(float(output.get(name, 0)) for output in logging_outputs)
            for name in ("sample_size", "loss", "ncorrect")
        )
        # Possibly no window of the batch has a target.
        if not size:
            return
        in_bits = all(output.get("is_likelihood", True) for output in logging_outputs)
        metrics.log_scalar("loss", loss / size / (math.log(2) if in_bits else 1.0), size, round=4)
        if any("ncorrect" in output for output in logging_outputs):
            metrics.log_scalar(cls.accuracy, 100.0 * correct / size, size, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False, because the logging outputs of validation contain predictions."""
        return False


class Collected(DerivedMeter):
    """A meter that collects the predictions for a validation set, by example key, and caches their metrics.

    This is a derived meter, because fairseq does not save derived meters in checkpoints. Resuming from a checkpoint
    with this meter would fail: fairseq can only restore its built-in meters.
    """

    def __init__(self) -> None:
        super().__init__(lambda meters: self.smoothed_value)
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self.rows: dict[Any, Any] = {}
        self._metrics: Mapping[str, float] | None = None

    def update(self, rows: Iterable[tuple[Any, Any]]) -> None:
        """Add (key, values) pairs; a key identifies an example of the validation set."""
        self.rows.update(rows)
        self._metrics = None

    def metrics(self, compute: Callable[[dict[Any, Any]], Mapping[str, float]]) -> Mapping[str, float]:
        """Return ``compute(rows)``, cached until the next update."""
        if self._metrics is None:
            self._metrics = compute(self.rows)
        return self._metrics

    @property
    def smoothed_value(self) -> int:
        """The number of examples."""
        return len(self.rows)


def log_collected(
    rows: Iterable[tuple[Any, Any]],
    compute: Callable[[dict[Any, Any]], Mapping[str, float]],
    names: Iterable[str],
) -> None:
    """Log metrics of the whole set from rows of a validation set, which are pairs of an example's key and its values.

    The rows come from all ranks, in any order; duplicates count once. fairseq calls ``compute`` with a dict of the rows
    of each batch and, when validation ends, of all rows; it returns a dict of metrics, which has all ``names``.
    """
    # A list, because fairseq passes it to several meters: the first would exhaust an iterator.
    metrics.log_custom(Collected, _KEY, list(rows))
    for name in names:
        metrics.log_derived(name, lambda meters, name=name: meters[_KEY].metrics(compute)[name])
