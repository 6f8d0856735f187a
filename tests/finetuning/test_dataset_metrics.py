"""Metrics of a whole validation set, collected over batches and ranks, worked out by hand, and undefined."""

import math

import numpy as np
import pytest
from fairseq.logging import metrics

from fairseq_maelm.models.label_metrics import OF_SETS
from fairseq_maelm.models.labels import Classes, Numbers, Sets, default_positive
from fairseq_maelm.tasks.finetuning import log_collected

CLASSES, NUMBERS = Classes(("0", "1"), "1"), Numbers()


def share_of_ones(rows):
    """A metric and its square, which is not a mean over batches."""
    share = sum(rows.values()) / len(rows)
    return {"share": share, "square": share**2}


def test_metrics_are_those_of_all_rows_each_counted_once():
    with metrics.aggregate(new_root=True) as validation:
        for rows in ([(0, 1), (1, 0)], [(1, 0), (2, 1), (3, 1)]):
            log_collected(rows, share_of_ones, ["share", "square"])
    assert validation.get_smoothed_values() == {"share": 0.75, "square": 0.5625}


def test_rows_that_come_after_a_metric_was_read_count_and_the_next_validation_begins_empty():
    for _ in range(2):
        with metrics.aggregate(new_root=True) as validation:
            log_collected([(0, 1)], share_of_ones, ["share"])
            assert validation.get_smoothed_values() == {"share": 1.0}
            log_collected([(1, 0)], share_of_ones, ["share"])
        assert validation.get_smoothed_values() == {"share": 0.5}


def test_rows_stay_out_of_checkpoints():
    """fairseq can restore only its standard meters: with any other in a checkpoint, no run could resume."""
    with metrics.aggregate(new_root=True) as validation:
        log_collected([(0, 1), (1, 0)], share_of_ones, ["share"])
        metrics.log_scalar("loss", 2.0)
    state = validation.state_dict()
    assert [name for _, name, _, _ in state] == ["loss"]
    validation.load_state_dict(state)
    assert validation.get_smoothed_values() == {"loss": 2.0}


# Metrics by hand

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
PREDICTED = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
TRUE = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_correlations_worked_by_hand():
    # Deviations -2, 1, 1 and -1, 0, 1: covariance 3, variances 6 and 2.
    of_deviations = NUMBERS.measure(np.array([0.0, 3, 3]), np.array([1.0, 2, 3]))
    assert of_deviations["pearson"] == pytest.approx(100 * 3 / math.sqrt(12))
    # Ranks, the two equal ones sharing theirs, 2.5, 1, 2.5, 4 and 1, 2, 3, 4: covariance 3, variances 4.5 and 5.
    of_ranks = NUMBERS.measure(np.array([5.0, 1, 5, 7]), np.array([1.0, 2, 3, 40]))
    assert of_ranks["spearman"] == pytest.approx(100 * 3 / math.sqrt(5 * 4.5))


def test_renaming_the_classes_changes_nothing_but_which_is_positive():
    other = CLASSES.with_positive("0").measure(1 - TRUE, 1 - PREDICTED)
    assert other == pytest.approx(CLASSES.measure(TRUE, PREDICTED))


def test_names():
    assert [NUMBERS.metrics, CLASSES.metrics, Classes(("a", "b")).metrics, Sets(("a",)).metrics] == [
        ("pearson", "spearman"), ("accuracy", "mcc", "f1"), ("accuracy", "mcc"), OF_SETS
    ]  # fmt: skip
    found = [default_positive(labels) for labels in (["0", "1"], ["entailment", "other"], ["a", "b"], ["0", "1", "2"])]
    assert found == ["1", "entailment", None, None]


def test_a_model_that_always_says_the_same_scores_zero_and_not_nan():
    same, gold = np.zeros(4, dtype=np.int64), np.array([0, 1, 0, 1])
    assert CLASSES.measure(gold, same) == {"accuracy": 50.0, "mcc": 0.0, "f1": 0.0}
    assert CLASSES.measure(same, same)["f1"] == 0.0
    # The mean of a constant that is not a binary fraction may differ from it in the last bit.
    assert NUMBERS.measure(np.arange(7.0), np.full(7, 0.1)) == {"pearson": 0.0, "spearman": 0.0}


def test_predictions_that_are_no_numbers_give_no_number():
    values = NUMBERS.measure(np.arange(3.0), np.array([1.0, np.nan, 2.0]))
    assert all(math.isnan(value) for value in values.values())


def test_numbers_beyond_the_squares_of_float64_are_correlated_too():
    for scale in (1e-200, 1e200):
        numbers = np.array([1.0, 2, 4])
        assert NUMBERS.measure(numbers, numbers * scale)["pearson"] == pytest.approx(100)
