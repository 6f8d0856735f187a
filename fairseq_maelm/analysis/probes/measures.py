"""Measures of frozen states as functions of arrays: linear probes and their baseline."""

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

logger = logging.getLogger(__name__)

Rows = NDArray[np.floating[Any]]

# scikit-learn's C, the inverse strength of the probe's L2 penalty, on standardized features.
INVERSE_PENALTY = 0.1
_ITERATIONS = 200


def logistic_regression(train: Rows, labels: NDArray[Any], test: Rows, expected: NDArray[Any]) -> float:
    """Return the test accuracy of a logistic regression fitted to the standardized training rows."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=_ITERATIONS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train.astype(np.float32), labels)
    if any(issubclass(each.category, ConvergenceWarning) for each in caught):
        logger.info("a logistic regression was stopped after %d iterations", _ITERATIONS)
    return float(probe.score(test.astype(np.float32), expected))


def most_frequent(labels: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the accuracy of always predicting the most frequent training label."""
    kinds, counts = np.unique(labels, return_counts=True)
    return float((expected == kinds[counts.argmax()]).mean())
