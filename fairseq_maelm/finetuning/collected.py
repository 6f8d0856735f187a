"""Metrics of a whole validation set that are not a mean over its batches: F1, correlations, exact match.

A criterion puts the predictions of a batch into its logging output, fairseq brings the logging outputs of all ranks
together, and ``reduce_metrics`` hands them to ``log_collected``. They are kept by example, so that batches which are
seen twice count once, and the metrics are computed when validation ends. Such a criterion must say that its logging
outputs cannot be summed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.logging import metrics
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.fairseq_fixes.private import DerivedMeter
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics

# fairseq does not print what begins with an underscore.
_KEY = "_collected"


class Collected(DerivedMeter):
    """Predictions of a validation set by example, and the metrics of all of them.

    fairseq writes all meters into checkpoints but for derived ones, and can restore only its own kinds: as a plain
    meter, this one would make every checkpoint larger and no run could be resumed.
    """

    def __init__(self) -> None:
        super().__init__(lambda meters: self.smoothed_value)
        self.rows: dict[Any, Any] = {}
        self._metrics: Mapping[str, float] | None = None

    def reset(self) -> None:
        """Forget everything."""
        self.rows = {}
        self._metrics = None

    def update(self, rows: Iterable[tuple[Any, Any]]) -> None:
        """Add pairs of an example's key, unique in the set, and its values."""
        self.rows.update(rows)
        self._metrics = None

    def metrics(self, compute: Callable[[dict[Any, Any]], Mapping[str, float]]) -> Mapping[str, float]:
        """Return the metrics of all rows; computed once, however many of them are asked for."""
        if self._metrics is None:
            self._metrics = compute(self.rows)
        return self._metrics

    @property
    def smoothed_value(self) -> int:
        """The number of examples, the one metric that any such set has."""
        return len(self.rows)


def log_collected(
    rows: Iterable[tuple[Any, Any]],
    compute: Callable[[dict[Any, Any]], Mapping[str, float]],
    names: Iterable[str],
) -> None:
    """Collect rows of a validation set and log metrics of the whole set under their names.

    Call it in ``reduce_metrics``, for validation alone: in training the rows of an epoch would pile up.

    Args:
        rows: pairs of an example's key and its values, from all ranks, in any order; repetitions count once.
        compute: returns metrics by name for rows by key. Called for all rows when validation ends, and by fairseq's own
            logging for those of each batch.
        names: of the metrics to log; ``compute`` returns at least these.
    """
    # fairseq hands them to one meter after the other: an iterator would be empty for the second.
    metrics.log_custom(Collected, _KEY, list(rows))

    def value(name: str) -> Callable[[Any], float]:
        return lambda meters: meters[_KEY].metrics(compute)[name]

    for name in names:
        metrics.log_derived(name, value(name))


def example_rows(sample: Mapping[str, Any], gold: Tensor, predicted: Tensor) -> dict[str, NDArray[Any]]:
    """Return what a criterion puts into its logging output for ``log_predictions``: B examples, classes or numbers.

    fairseq limits how much a batch may send to the other ranks, so numbers go in 4 bytes each.
    """
    arrays = {"ids": sample["id"], "gold": gold, "predicted": predicted}
    numbers = {name: tensor.detach().cpu().numpy() for name, tensor in arrays.items()}
    return {name: array.astype(np.float32 if array.dtype.kind == "f" else np.int32) for name, array in numbers.items()}


def log_predictions(
    logging_outputs: Iterable[Mapping[str, Any]], names: Sequence[str], positive: int | None = 1
) -> None:
    """Log metrics of a whole validation set, by their names, from ``example_rows`` of all ranks.

    Args:
        logging_outputs: those without rows, of training, are passed over.
        names: see ``compute_metrics``, as for ``positive``.
        positive: the class that F1 is of.
    """
    rows = [
        (key, pair)
        for output in logging_outputs
        if "ids" in output
        for key, pair in zip(output["ids"].tolist(), zip(output["gold"].tolist(), output["predicted"].tolist()))
    ]

    def compute(collected: dict[Any, Any]) -> dict[str, float]:
        gold, predicted = np.array([collected[key] for key in sorted(collected)]).T
        return compute_metrics(names, gold, predicted, positive)

    if rows:
        log_collected(rows, compute, names)
