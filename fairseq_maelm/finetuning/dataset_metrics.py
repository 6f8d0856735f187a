"""Metrics of a whole validation set that are not means over its batches: F1, correlations, exact match.

A criterion puts the predictions of a batch into its logging output, fairseq gathers the logging outputs of all ranks,
and ``reduce_metrics`` passes them to ``log_collected``. Predictions are stored by example, so that an example that
occurs in two batches counts once, and the metrics are computed when validation ends. Such a criterion must report that
its logging outputs cannot be summed.

Metrics are in percent. An undefined metric (no positive examples or predictions, or constant values) is 0, so that a
model with constant predictions ranks last. Predictions that are infinite or NaN make a correlation NaN.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.logging import metrics
from numpy.typing import NDArray
from torch import Tensor

from fairseq_maelm.fairseq_fixes.private import DerivedMeter

OF_CLASSES = ("accuracy", "mcc", "f1")
OF_NUMBERS = ("pearson", "spearman")
OF_SETS = ("micro_f1", "macro_f1", "subset_accuracy")

# fairseq does not print metrics whose names begin with an underscore.
_KEY = "_collected"


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
    """Collect rows of a validation set and log metrics of the whole set.

    Call it from ``reduce_metrics`` in validation only: in training the rows of a whole epoch would be stored.

    Args:
        rows: pairs of an example's key and its values, from all ranks, in any order; duplicates count once.
        compute: function from a dict of rows, key -> values, to a dict of metrics, name -> value. fairseq calls it
            with the rows of each batch and, when validation ends, with all rows.
        names: the metrics to log; ``compute`` must return them.
    """
    # A list, because fairseq passes it to several meters: the first would exhaust an iterator.
    metrics.log_custom(Collected, _KEY, list(rows))
    for name in names:
        metrics.log_derived(name, lambda meters, name=name: meters[_KEY].metrics(compute)[name])


def example_rows(sample: Mapping[str, Any], gold: Tensor, predicted: Tensor) -> dict[str, NDArray[Any]]:
    """Return logging outputs for ``log_predictions``: ids, and right and predicted classes (or numbers), each [B].

    Values have at most 4 bytes, because fairseq limits the size of the logging outputs that ranks exchange; packed sets
    of labels <uint8>[B, bytes] stay as they are.
    """
    arrays = {"ids": sample["id"], "gold": gold, "predicted": predicted}
    numbers = {name: tensor.detach().cpu().numpy() for name, tensor in arrays.items()}
    types = {"f": np.float32, "u": np.uint8}
    return {name: array.astype(types.get(array.dtype.kind, np.int32)) for name, array in numbers.items()}


def log_predictions(
    logging_outputs: Iterable[Mapping[str, Any]], names: Sequence[str], positive: int | None = 1
) -> None:
    """Log metrics of a whole validation set from the ``example_rows`` of all ranks.

    Args:
        logging_outputs: logging outputs of all ranks; those of training, which have no rows, are ignored.
        names: as in ``compute_metrics``.
        positive: as in ``compute_metrics``.
    """
    rows = [
        (key, pair)
        for output in logging_outputs
        if "ids" in output
        for key, pair in zip(output["ids"].tolist(), zip(output["gold"].tolist(), output["predicted"].tolist()))
    ]

    def compute(collected: dict[Any, Any]) -> dict[str, float]:
        gold, predicted = np.array([collected[key] for key in sorted(collected)]).swapaxes(0, 1)
        return compute_metrics(names, gold, predicted, positive)

    if rows:
        log_collected(rows, compute, names)


def metric_names(regression: bool, positive: int | None, multi_label: bool = False) -> list[str]:
    """Return the names of a task's metrics; F1 of classes needs a positive one."""
    if multi_label:
        return list(OF_SETS)
    return list(OF_NUMBERS if regression else OF_CLASSES[: 2 if positive is None else 3])


def compute_metrics(
    names: Sequence[str], gold: NDArray[Any], predicted: NDArray[Any], positive: int | None = 1
) -> dict[str, float]:
    """Compute metrics by name.

    Args:
        names: the metrics, all in ``OF_CLASSES``, all in ``OF_NUMBERS`` or all in ``OF_SETS``.
        gold: [examples] right classes or numbers, at least one; or sets [examples, labels] of 0 and 1.
        predicted: [examples] predicted classes or numbers; or sets.
        positive: the positive class of F1.
    """
    if names[0] in OF_NUMBERS:
        return {name: _correlation(name, gold.astype(np.float64), predicted.astype(np.float64)) for name in names}
    if names[0] in OF_SETS:
        return _metrics_of_sets(gold.astype(np.bool_), predicted.astype(np.bool_))
    from sklearn import metrics  # takes a second, as scipy does

    gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    computed = {
        "accuracy": lambda: metrics.accuracy_score(gold, predicted),
        # scikit-learn warns about a single class.
        "mcc": lambda: metrics.matthews_corrcoef(gold, predicted) if len(np.union1d(gold, predicted)) > 1 else 0.0,
        "f1": lambda: metrics.f1_score(gold == positive, predicted == positive, zero_division=0),
    }
    return {name: 100.0 * float(computed[name]()) for name in names}


def _metrics_of_sets(gold: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> dict[str, float]:
    """Return all of ``OF_SETS``: F1 of all decisions, the mean of the labels' F1, and the share of equal sets."""
    found, total = (gold & predicted).sum(axis=0), gold.sum(axis=0) + predicted.sum(axis=0)
    micro, macro = 2 * found.sum() / max(1, total.sum()), np.mean(2 * found / np.maximum(1, total))
    values = micro, macro, np.mean((gold == predicted).all(axis=1))
    return {name: 100.0 * float(value) for name, value in zip(OF_SETS, values, strict=True)}


def _correlation(name: str, gold: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        return float("nan")
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        return 0.0
    from scipy import stats

    function = stats.pearsonr if name == "pearson" else stats.spearmanr
    return 100.0 * float(function(gold, predicted)[0])
