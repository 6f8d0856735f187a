"""Metrics of a whole set of predictions, in percent, as GLUE and Gao et al. (2021) report them."""

from collections.abc import Callable, Sequence

import numpy as np


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Share of equal labels, in [0, 100]; both <int64>[examples]."""
    return 100.0 * float(np.mean(gold == predicted))


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1 of two, in [0, 100]; 0 where class 1 is neither there nor predicted."""
    hits = np.count_nonzero((gold == 1) & (predicted == 1))
    claims = np.count_nonzero(gold == 1) + np.count_nonzero(predicted == 1)
    return 100.0 * 2 * hits / claims if claims else 0.0


def mcc(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Correlation of Matthews, in [-100, 100], for any number of classes (Gorodkin, 2004).

    0 where all labels or all predictions are equal, as scikit-learn has it.
    """
    classes = int(max(gold.max(), predicted.max())) + 1
    table = np.bincount(gold * classes + predicted, minlength=classes**2).reshape(classes, classes).astype(float)
    total, right = table.sum(), np.trace(table)
    per_gold, per_predicted = table.sum(axis=1), table.sum(axis=0)
    spread = (total**2 - per_gold @ per_gold) * (total**2 - per_predicted @ per_predicted)
    return 100.0 * float((right * total - per_gold @ per_predicted) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Linear correlation, in [-100, 100]; both <float64>[examples]. 0 where either is constant."""
    gold, predicted = gold - gold.mean(), predicted - predicted.mean()
    spread = np.sqrt((gold @ gold) * (predicted @ predicted))
    return 100.0 * float(gold @ predicted / spread) if spread > 0 else 0.0


def spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Correlation of ranks, in [-100, 100]; equal values share their mean rank. 0 where either is constant."""
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


OF_CLASSES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"accuracy": accuracy, "f1": f1, "mcc": mcc}
OF_NUMBERS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"pearson": pearson, "spearman": spearman}


def compute_metrics(names: Sequence[str], gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Compute metrics by name.

    Args:
        names: of ``OF_CLASSES``, then gold and predictions are <int64>[examples]; or of ``OF_NUMBERS``, <float>.
    """
    if names[0] in OF_CLASSES:
        gold, predicted = gold.astype(np.int64), predicted.astype(np.int64)
        return {name: OF_CLASSES[name](gold, predicted) for name in names}
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    return {name: OF_NUMBERS[name](gold, predicted) for name in names}
