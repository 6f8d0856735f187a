"""Metrics of labels in percent: of classes, sets and numbers.

An undefined metric (no positive examples or predictions, or constant values) is 0, so that a model with constant
predictions ranks last. Predictions that are infinite or NaN make a correlation NaN.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OF_CLASSES: tuple[str, ...] = ("accuracy", "mcc", "f1")
OF_NUMBERS: tuple[str, ...] = ("pearson", "spearman")
OF_SETS: tuple[str, ...] = ("micro_f1", "macro_f1", "subset_accuracy")


def of_classes(
    names: Sequence[str], right: NDArray[Any], found: NDArray[Any], positive: int | None
) -> dict[str, float]:
    """Compute metrics of ``OF_CLASSES`` by name for class indices [n]; F1 is that of the positive class."""
    from sklearn import metrics  # takes a second, as scipy does

    right, found = right.astype(np.int64), found.astype(np.int64)
    computed = {
        "accuracy": lambda: metrics.accuracy_score(right, found),
        # scikit-learn warns about a single class.
        "mcc": lambda: metrics.matthews_corrcoef(right, found) if len(np.union1d(right, found)) > 1 else 0.0,
        "f1": lambda: metrics.f1_score(right == positive, found == positive, zero_division=0),
    }
    return {name: 100.0 * float(computed[name]()) for name in names}


def of_sets(right: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
    """Return F1 of all decisions, the mean of the labels' F1, and the share of equal sets [n, labels]."""
    right, found = right.astype(np.bool_), found.astype(np.bool_)
    both, total = (right & found).sum(axis=0), right.sum(axis=0) + found.sum(axis=0)
    micro, macro = 2 * both.sum() / max(1, total.sum()), np.mean(2 * both / np.maximum(1, total))
    values = micro, macro, np.mean((right == found).all(axis=1))
    return {name: 100.0 * float(value) for name, value in zip(OF_SETS, values, strict=True)}


def of_numbers(names: Sequence[str], right: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
    """Compute metrics of ``OF_NUMBERS`` by name for numbers [n]."""
    return {name: _correlation(name, right.astype(np.float64), found.astype(np.float64)) for name in names}


def _correlation(name: str, right: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    if not (np.isfinite(right).all() and np.isfinite(found).all()):
        return float("nan")
    if np.ptp(right) == 0 or np.ptp(found) == 0:
        return 0.0
    from scipy import stats

    function = stats.pearsonr if name == "pearson" else stats.spearmanr
    return 100.0 * float(function(right, found)[0])
