"""Metrics of GLUE: worked by hand, equal to scikit-learn's and scipy's, and what they are where they are undefined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from fairseq_maelm.finetuning.sentence_metrics import (
    accuracy,
    classification_metrics,
    f1,
    matthews,
    pearson,
    regression_metrics,
    spearman,
)

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
TRUE = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_two_classes_worked_by_hand():
    assert accuracy(PREDICTED, TRUE) == pytest.approx(70)
    assert f1(PREDICTED, TRUE, positive=1) == pytest.approx(100 * 2 * 3 / (2 * 3 + 1 + 2))
    assert f1(PREDICTED, TRUE, positive=0) == pytest.approx(100 * 2 * 4 / (2 * 4 + 1 + 2))
    assert matthews(PREDICTED, TRUE) == pytest.approx(100 * (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))


def test_correlations_worked_by_hand():
    # Deviations -1, 0, 1 and -2, 1, 1: covariance 3, variances 2 and 6.
    assert pearson(np.array([1.0, 2, 3]), np.array([0.0, 3, 3])) == pytest.approx(100 * 3 / math.sqrt(12))
    # Ranks 1, 2, 3, 4 and, the two equal ones sharing theirs, 2.5, 1, 2.5, 4: covariance 3, variances 5 and 4.5.
    assert spearman(np.array([1.0, 2, 3, 40]), np.array([5.0, 1, 5, 7])) == pytest.approx(100 * 3 / math.sqrt(5 * 4.5))


def test_renaming_the_classes_changes_nothing_but_which_is_positive():
    assert matthews(1 - PREDICTED, 1 - TRUE) == pytest.approx(matthews(PREDICTED, TRUE))
    assert classification_metrics(1 - PREDICTED, 1 - TRUE, positive=0) == pytest.approx(
        classification_metrics(PREDICTED, TRUE, positive=1)
    )
    assert "f1" not in classification_metrics(PREDICTED, TRUE, positive=None)


CLASSES = st.integers(1, 60).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 2), min_size=size, max_size=size)] * 2)
)
NUMBERS = st.integers(2, 60).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(-4, 4).map(lambda n: n / 3), min_size=size, max_size=size)] * 2)
)


@given(CLASSES)
@settings(max_examples=60, deadline=None)
def test_classes_are_scored_as_by_scikit_learn(pair):
    predictions, targets = map(np.array, pair)
    ours = classification_metrics(predictions, targets, positive=1)
    expected_f1 = metrics.f1_score(targets == 1, predictions == 1, zero_division=0)
    assert ours["accuracy"] == pytest.approx(100 * metrics.accuracy_score(targets, predictions))
    assert ours["mcc"] == pytest.approx(100 * metrics.matthews_corrcoef(targets, predictions), abs=1e-9)
    assert ours["f1"] == pytest.approx(100 * expected_f1)


@given(NUMBERS)
@settings(max_examples=60, deadline=None)
def test_numbers_are_scored_as_by_scipy(pair):
    predictions, targets = map(np.array, pair)
    ours = regression_metrics(predictions, targets)
    if np.ptp(predictions) == 0 or np.ptp(targets) == 0:
        assert ours == {"pearson": 0.0, "spearman": 0.0}
        return
    assert ours["pearson"] == pytest.approx(100 * stats.pearsonr(predictions, targets)[0], abs=1e-9)
    assert ours["spearman"] == pytest.approx(100 * stats.spearmanr(predictions, targets)[0], abs=1e-9)


def test_a_model_that_always_says_the_same_scores_zero_and_not_nan():
    same = np.zeros(4, dtype=np.int64)
    assert classification_metrics(same, np.array([0, 1, 0, 1]), 1) == {"accuracy": 50.0, "mcc": 0.0, "f1": 0.0}
    # A constant that is no binary fraction: its mean may differ from it in the last bit.
    assert regression_metrics(np.full(7, 0.1), np.arange(7.0))["spearman"] == 0.0
    assert abs(regression_metrics(np.full(7, 0.1), np.arange(7.0))["pearson"]) == 0.0


def test_predictions_that_are_no_numbers_give_no_number():
    broken = np.array([1.0, np.nan, 2.0])
    assert all(math.isnan(value) for value in regression_metrics(broken, np.arange(3.0)).values())


def test_numbers_beyond_the_squares_of_float64_are_correlated_too():
    for scale in (1e-200, 1e200):
        assert pearson(np.array([1.0, 2, 4]) * scale, np.array([1.0, 2, 4])) == pytest.approx(100)
