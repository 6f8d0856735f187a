"""Measures of frozen states as functions of arrays: whitening, correlation, probes, search."""

import logging
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

logger = logging.getLogger(__name__)

Rows = NDArray[np.floating[Any]]

# scikit-learn's C, the inverse strength of the probe's L2 penalty, on standardized features.
INVERSE_PENALTY = 0.1
_ITERATIONS = 200
# Principal axes with less than this share of the largest variance are rounding errors.
_LEAST_VARIANCE = 1e-9
# Number of test rows per matrix product with all training rows.
_CHUNK = 2048


class Whitening(NamedTuple):
    """An affine map to mean 0 and identity covariance, fitted to rows."""

    mean: NDArray[np.float64]  # [D]
    axes: NDArray[np.float64]  # [D, K], K at most D

    def apply(self, rows: Rows) -> NDArray[np.float64]:
        """Map rows <float>[n, D] to <float64>[n, K]."""
        return (rows - self.mean) @ self.axes


def fit_whitening(rows: Rows) -> Whitening:
    """Fit PCA whitening (Su et al., 2021, for sentence vectors) to rows <float>[n, D], n >= 2, in double precision.

    Axes without variance are dropped, so K is the rank of the centered rows.
    """
    rows = rows.astype(np.float64)
    mean = rows.mean(axis=0)
    centered = rows - mean
    variances, vectors = eigh(centered.T @ centered / len(rows))
    kept = variances > max(_LEAST_VARIANCE * variances[-1], np.finfo(np.float64).tiny)
    return Whitening(mean, vectors[:, kept] / np.sqrt(variances[kept]))


def normalized(rows: Rows) -> Rows:
    """Scale rows to length 1; rows of zeros stay zeros."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def spearman(first: Rows, second: Rows, scores: Rows) -> float:
    """Return Spearman's correlation of row-wise cosines with scores <float>[n]; 0 if cosines or scores are constant."""
    cosines = (normalized(first.astype(np.float64)) * normalized(second.astype(np.float64))).sum(axis=1)
    # Cosines that are equal on paper differ by rounding, which would give them a random order.
    cosines = cosines.round(9)
    if np.ptp(cosines) == 0 or np.ptp(scores) == 0:
        return 0.0
    return float(spearmanr(cosines, scores).statistic)


def nearest_neighbor(train: Rows, labels: NDArray[Any], test: Rows, expected: NDArray[Any]) -> float:
    """Return the test accuracy of a 1-nearest-neighbor classifier by cosine."""
    unit = normalized(train.astype(np.float32)).T
    right = 0
    for start in range(0, len(test), _CHUNK):
        nearest = (normalized(test[start : start + _CHUNK].astype(np.float32)) @ unit).argmax(axis=1)
        right += int((labels[nearest] == expected[start : start + _CHUNK]).sum())
    return right / len(test)


def logistic_regression(train: Rows, labels: NDArray[Any], test: Rows, expected: NDArray[Any]) -> float:
    """Return the test accuracy of a logistic regression fitted to the standardized training rows."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=_ITERATIONS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train.astype(np.float32), labels)
    if any(issubclass(each.category, ConvergenceWarning) for each in caught):
        logger.info("a logistic regression was stopped after %d iterations", _ITERATIONS)
    return float(probe.score(test.astype(np.float32), expected))


def reciprocal_rank(queries: Rows, texts: Rows) -> float:
    """Return the mean reciprocal rank, in (0, 1], of text i when query i ranks texts <float>[n, D] by cosine."""
    scores = normalized(queries.astype(np.float64)) @ normalized(texts.astype(np.float64)).T
    ranks = (scores > np.diagonal(scores)[:, None]).sum(axis=1) + 1
    return float((1 / ranks).mean())


def mean_cosine(unit_sum: Rows, number: int) -> float:
    """Return the mean cosine between different rows, given the sum <float64>[D] of the ``number`` normalized rows.

    Ethayarajh (2019) estimates this mean from random pairs. Near 1, all rows have the same direction.
    """
    return float((unit_sum @ unit_sum - number) / (number * (number - 1)))


def most_frequent(labels: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the accuracy of always predicting the most frequent training label."""
    kinds, counts = np.unique(labels, return_counts=True)
    return float((expected == kinds[counts.argmax()]).mean())
