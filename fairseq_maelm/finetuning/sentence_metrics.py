"""The metrics of GLUE, all in percent: accuracy, F1, Matthews', Pearson's and Spearman's correlation.

Where a metric is undefined - nothing is or was predicted positive, or one side is constant - it is 0, so that a model
which always says the same is the worst and not "not a number". Predictions that are no numbers give nan.
"""

from typing import Optional

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def accuracy(predictions: Array, targets: Array) -> float:
    """Share of equal entries, in percent.

    Args:
        predictions: [n] classes.
        targets: [n] classes.
    """
    return 100.0 * float(np.mean(predictions == targets))


def f1(predictions: Array, targets: Array, positive: int) -> float:
    """Harmonic mean of precision and recall of one class, in percent; see ``accuracy`` for the arguments.

    Args:
        positive: the class.
    """
    true_positives = int(np.sum((predictions == positive) & (targets == positive)))
    marked = int(np.sum(predictions == positive)) + int(np.sum(targets == positive))
    return 100.0 * 2 * true_positives / marked if marked else 0.0


def matthews(predictions: Array, targets: Array) -> float:
    """Matthews' correlation of two classes, and its generalization to more of them (Gorodkin, 2004), in percent."""
    classes = np.unique(np.concatenate([predictions, targets]))
    predicted = (predictions[:, None] == classes).astype(np.float64)
    true = (targets[:, None] == classes).astype(np.float64)
    return 100.0 * _correlation(predicted, true)


def pearson(predictions: Array, targets: Array) -> float:
    """Pearson's correlation of numbers, in percent.

    Args:
        predictions: [n] numbers.
        targets: [n] numbers.
    """
    return 100.0 * _correlation(predictions.astype(np.float64)[:, None], targets.astype(np.float64)[:, None])


def spearman(predictions: Array, targets: Array) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal numbers sharing their mean rank; see ``pearson``."""
    if np.isnan(predictions.astype(np.float64)).any():
        return float("nan")
    return pearson(_ranks(predictions), _ranks(targets))


def classification_metrics(predictions: Array, targets: Array, positive: Optional[int]) -> dict[str, float]:
    """All metrics of a classification task.

    Args:
        predictions: [n] classes, n at least 1.
        targets: [n] classes.
        positive: the class that F1 is of; None leaves F1 out.

    Returns:
        "accuracy", "mcc" and "f1", in percent.
    """
    metrics = {"accuracy": accuracy(predictions, targets), "mcc": matthews(predictions, targets)}
    if positive is not None:
        metrics["f1"] = f1(predictions, targets, positive)
    return metrics


def regression_metrics(predictions: Array, targets: Array) -> dict[str, float]:
    """All metrics of a regression task: "pearson" and "spearman", in percent; see ``pearson``."""
    return {"pearson": pearson(predictions, targets), "spearman": spearman(predictions, targets)}


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Covariance of two <float64>[n, k], summed over k, over the root of the product of both variances; in [-1, 1]."""
    # From their first entry on, so that what is constant is exactly so; and scaled, because the squares of very small
    # or very large numbers leave the range of float64.
    first, second = (each - each[0] for each in (first, second))
    first, second = (each - each.mean(axis=0) for each in (first, second))
    scales = [float(np.abs(each).max(initial=0.0)) for each in (first, second)]
    if np.isnan(scales).any() or np.isinf(scales).any():
        return float("nan")
    if 0.0 in scales:
        return 0.0
    first, second = first / scales[0], second / scales[1]
    norm = np.sqrt(np.sum(first**2)) * np.sqrt(np.sum(second**2))
    return float(np.clip(np.sum(first * second) / norm, -1.0, 1.0))


def _ranks(numbers: Array) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse.reshape(-1)]
