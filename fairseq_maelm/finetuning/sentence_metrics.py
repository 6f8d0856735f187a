"""Metrics of a whole set of predictions, in percent, computed by scikit-learn and scipy.

An undefined metric (no positive examples or predictions, or a constant side) is 0, so that a model with constant
predictions ranks last. Predictions that are infinite or NaN make a correlation NaN.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OF_CLASSES = ("accuracy", "mcc", "f1")
OF_NUMBERS = ("pearson", "spearman")

# The default positive labels of F1: those of GLUE's tasks with that metric.
_POSITIVE_LABELS = ("1", "entailment")


def positive_class(labels: Sequence[str]) -> int | None:
    """Return the default positive class of two labels, "1" or "entailment"; None without such a label."""
    return next((labels.index(label) for label in _POSITIVE_LABELS if label in labels and len(labels) == 2), None)


def metric_names(regression: bool, positive: int | None) -> list[str]:
    """Return the names of a task's metrics; F1 needs a positive class."""
    return list(OF_NUMBERS if regression else OF_CLASSES[: 2 if positive is None else 3])


def compute_metrics(
    names: Sequence[str], gold: NDArray[Any], predicted: NDArray[Any], positive: int | None = 1
) -> dict[str, float]:
    """Compute metrics by name.

    Args:
        names: metrics in ``OF_CLASSES``, or metrics in ``OF_NUMBERS``.
        gold: [examples] right classes or numbers, at least one.
        predicted: [examples] predicted classes or numbers.
        positive: the positive class of F1.
    """
    if names[0] in OF_NUMBERS:
        return {name: _correlation(name, gold.astype(np.float64), predicted.astype(np.float64)) for name in names}
    from sklearn import metrics  # takes a second, as scipy does

    gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    computed = {
        "accuracy": lambda: metrics.accuracy_score(gold, predicted),
        # scikit-learn warns about a single class.
        "mcc": lambda: metrics.matthews_corrcoef(gold, predicted) if len(np.union1d(gold, predicted)) > 1 else 0.0,
        "f1": lambda: metrics.f1_score(gold == positive, predicted == positive, zero_division=0),
    }
    return {name: 100.0 * float(computed[name]()) for name in names}


def _correlation(name: str, gold: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        return float("nan")
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        return 0.0
    from scipy import stats

    function = stats.pearsonr if name == "pearson" else stats.spearmanr
    return 100.0 * float(function(gold, predicted)[0])
