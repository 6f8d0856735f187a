"""Metrics worked out by hand, and undefined metrics."""

import math

import numpy as np
import pytest

from fairseq_maelm.finetuning.sentence_metrics import (
    OF_CLASSES,
    OF_NUMBERS,
    compute_metrics,
    metric_names,
    positive_class,
)

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
TRUE = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_two_classes_worked_by_hand():
    assert compute_metrics(OF_CLASSES, TRUE, PREDICTED) == pytest.approx(
        {
            "accuracy": 70,
            "mcc": 100 * (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6),
            "f1": 100 * 2 * 3 / (2 * 3 + 1 + 2),
        }
    )
    assert compute_metrics(["f1"], TRUE, PREDICTED, positive=0)["f1"] == pytest.approx(100 * 2 * 4 / (2 * 4 + 1 + 2))


def test_correlations_worked_by_hand():
    # Deviations -2, 1, 1 and -1, 0, 1: covariance 3, variances 6 and 2.
    of_deviations = compute_metrics(["pearson"], np.array([0.0, 3, 3]), np.array([1.0, 2, 3]))
    assert of_deviations == pytest.approx({"pearson": 100 * 3 / math.sqrt(12)})
    # Ranks, the two equal ones sharing theirs, 2.5, 1, 2.5, 4 and 1, 2, 3, 4: covariance 3, variances 4.5 and 5.
    of_ranks = compute_metrics(["spearman"], np.array([5.0, 1, 5, 7]), np.array([1.0, 2, 3, 40]))
    assert of_ranks == pytest.approx({"spearman": 100 * 3 / math.sqrt(5 * 4.5)})


def test_renaming_the_classes_changes_nothing_but_which_is_positive():
    assert compute_metrics(OF_CLASSES, 1 - TRUE, 1 - PREDICTED, positive=0) == pytest.approx(
        compute_metrics(OF_CLASSES, TRUE, PREDICTED, positive=1)
    )


def test_names():
    assert metric_names(regression=True, positive=None) == list(OF_NUMBERS) == ["pearson", "spearman"]
    assert metric_names(regression=False, positive=None) == ["accuracy", "mcc"]
    assert metric_names(regression=False, positive=1) == ["accuracy", "mcc", "f1"]
    found = [positive_class(labels) for labels in (["0", "1"], ["entailment", "other"], ["a", "b"], ["0", "1", "2"])]
    assert found == [1, 0, None, None]


def test_a_model_that_always_says_the_same_scores_zero_and_not_nan():
    same, gold = np.zeros(4, dtype=np.int64), np.array([0, 1, 0, 1])
    assert compute_metrics(OF_CLASSES, gold, same) == {"accuracy": 50.0, "mcc": 0.0, "f1": 0.0}
    assert compute_metrics(["f1"], same, same) == {"f1": 0.0}
    # The mean of a constant that is not a binary fraction may differ from it in the last bit.
    assert compute_metrics(OF_NUMBERS, np.arange(7.0), np.full(7, 0.1)) == {"pearson": 0.0, "spearman": 0.0}


def test_predictions_that_are_no_numbers_give_no_number():
    values = compute_metrics(OF_NUMBERS, np.arange(3.0), np.array([1.0, np.nan, 2.0]))
    assert all(math.isnan(value) for value in values.values())


def test_numbers_beyond_the_squares_of_float64_are_correlated_too():
    for scale in (1e-200, 1e200):
        numbers = np.array([1.0, 2, 4])
        assert compute_metrics(["pearson"], numbers, numbers * scale)["pearson"] == pytest.approx(100)
