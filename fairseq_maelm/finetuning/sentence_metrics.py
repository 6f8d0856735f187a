"""Metrics of a whole set of predictions, in percent, computed by scikit-learn and scipy.

Where a metric is undefined - nothing is or was predicted positive, or one side is constant - it is 0, so that a model
which always says the same is the worst and not "not a number". Predictions that are not numbers give nan.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics

OF_CLASSES = ("accuracy", "mcc", "f1")
OF_NUMBERS = ("pearson", "spearman")

# Labels that F1 is of unless an option says otherwise: those of GLUE's tasks that are scored by it.
_POSITIVE_LABELS = ("1", "entailment")


def positive_class(labels: Sequence[str]) -> int | None:
    """Return the class of two that F1 is of by default, "1" or "entailment"; None if it is neither."""
    return next((labels.index(label) for label in _POSITIVE_LABELS if label in labels and len(labels) == 2), None)


def metric_names(regression: bool, positive: int | None) -> list[str]:
    """Return the names of all metrics of a task; there is F1 only where a class is positive."""
    return list(OF_NUMBERS if regression else OF_CLASSES[: 2 if positive is None else 3])


def compute_metrics(
    names: Sequence[str], gold: NDArray[Any], predicted: NDArray[Any], positive: int | None = 1
) -> dict[str, float]:
    """Compute metrics by name, all of ``OF_CLASSES`` or all of ``OF_NUMBERS``.

    Args:
        names: of the metrics.
        gold: [examples], at least one: classes or numbers.
        predicted: [examples], the same of a model.
        positive: the class that F1 is of.
    """
    if names[0] in OF_NUMBERS:
        return {name: _correlation(name, gold.astype(np.float64), predicted.astype(np.float64)) for name in names}
    gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
    computed = {
        "accuracy": lambda: metrics.accuracy_score(gold, predicted),
        # scikit-learn warns of a single class.
        "mcc": lambda: metrics.matthews_corrcoef(gold, predicted) if len(np.union1d(gold, predicted)) > 1 else 0.0,
        "f1": lambda: metrics.f1_score(gold == positive, predicted == positive, zero_division=0),
    }
    return {name: 100.0 * float(computed[name]()) for name in names}


def _correlation(name: str, gold: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        return float("nan")
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        return 0.0
    function = stats.pearsonr if name == "pearson" else stats.spearmanr
    return 100.0 * float(function(gold, predicted)[0])
