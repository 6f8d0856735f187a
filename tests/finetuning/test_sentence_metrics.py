"""Metrics: worked by hand, equal to plain counts, and what they are where they are undefined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.finetuning.sentence_metrics import OF_CLASSES, OF_NUMBERS, compute_metrics, metric_names

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


CLASSES = st.integers(1, 60).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 2), min_size=size, max_size=size)] * 2)
)
NUMBERS = st.integers(1, 60).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(-4, 4).map(lambda n: n / 3), min_size=size, max_size=size)] * 2)
)


@given(CLASSES)
@settings(max_examples=60, deadline=None)
def test_classes_as_they_are_counted(pair):
    predicted, gold = map(np.array, pair)
    ours = compute_metrics(OF_CLASSES, gold, predicted)
    hits, claims = np.sum((predicted == 1) & (gold == 1)), np.sum(predicted == 1) + np.sum(gold == 1)
    assert ours["accuracy"] == pytest.approx(100 * np.mean(predicted == gold))
    assert ours["f1"] == pytest.approx(100 * 2 * hits / claims if claims else 0)
    # The covariance of indicators, summed over classes (Gorodkin, 2004).
    x, y = (np.eye(3)[each] - np.eye(3)[each].mean(axis=0) for each in (predicted, gold))
    norm = np.sqrt((x * x).sum() * (y * y).sum())
    assert ours["mcc"] == pytest.approx(100 * (x * y).sum() / norm if norm > 1e-9 else 0, abs=1e-9)


@given(NUMBERS)
@settings(max_examples=60, deadline=None)
def test_numbers_as_they_are_counted(pair):
    predicted, gold = map(np.array, pair)
    ours = compute_metrics(OF_NUMBERS, gold, predicted)
    if np.ptp(predicted) == 0 or np.ptp(gold) == 0:
        assert ours == {"pearson": 0.0, "spearman": 0.0}
        return
    assert ours["pearson"] == pytest.approx(100 * np.corrcoef(predicted, gold)[0, 1], abs=1e-9)
    ranks = [[(np.sum(each < one) + np.sum(each <= one)) / 2 for one in each] for each in (predicted, gold)]
    assert ours["spearman"] == pytest.approx(100 * np.corrcoef(*ranks)[0, 1], abs=1e-9)


def test_a_model_that_always_says_the_same_scores_zero_and_not_nan():
    same, gold = np.zeros(4, dtype=np.int64), np.array([0, 1, 0, 1])
    assert compute_metrics(OF_CLASSES, gold, same) == {"accuracy": 50.0, "mcc": 0.0, "f1": 0.0}
    assert compute_metrics(["f1"], same, same) == {"f1": 0.0}
    # A constant that is no binary fraction: its mean may differ from it in the last bit.
    assert compute_metrics(OF_NUMBERS, np.arange(7.0), np.full(7, 0.1)) == {"pearson": 0.0, "spearman": 0.0}


def test_predictions_that_are_no_numbers_give_no_number():
    values = compute_metrics(OF_NUMBERS, np.arange(3.0), np.array([1.0, np.nan, 2.0]))
    assert all(math.isnan(value) for value in values.values())


def test_numbers_beyond_the_squares_of_float64_are_correlated_too():
    for scale in (1e-200, 1e200):
        numbers = np.array([1.0, 2, 4])
        assert compute_metrics(["pearson"], numbers, numbers * scale)["pearson"] == pytest.approx(100)
