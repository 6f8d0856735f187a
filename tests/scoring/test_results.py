"""Accuracy and its intervals, by hand and compared with scipy's bootstrap."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from fairseq_maelm.scoring.reading import Item
from fairseq_maelm.scoring.results import Scored, paired_interval, summarize


def scored(pairs: list[tuple[str, float, float]], tokens: tuple[int, int] = (2, 4)) -> list[Scored]:
    return [
        Scored(Item("file:1", side, paradigm, "", "text"), value, value / number, number)
        for paradigm, *values in pairs
        for side, value, number in zip(("good", "bad"), values, tokens)
    ]


def test_accuracy_by_hand() -> None:
    # By the sum right, wrong, a tie; by the token wrong, wrong and, with twice as many tokens in the bad one, wrong.
    own = scored([("a", -3.0, -4.0), ("a", -9.0, -1.0), ("b", -5.0, -5.0)])
    other = scored([("a", -4.0, -3.0), ("a", -9.0, -1.0), ("b", -4.0, -5.0)])
    summary = summarize(own, other)
    assert summary["sentences"] == 6 and summary["tokens"] == 18
    assert summary["pseudo_perplexity"] == pytest.approx(np.exp(27 / 18))
    assert summary["paradigms"]["a"]["sum"] == 0.5 and summary["paradigms"]["a"]["per_token"] == 0.0
    assert summary["paradigms"]["b"]["sum"] == 0.5
    assert summary["overall"]["sum"] == 0.5 and summary["overall"]["other"]["sum"] == pytest.approx(1 / 3)
    assert summary["overall"]["difference"]["sum"] == pytest.approx(1 / 6)
    assert summary["overall"]["ties_right"] == {"sum": pytest.approx(2 / 3), "per_token": 0.0}
    assert summary["paradigms"]["b"]["ties_right"]["sum"] == 1.0
    # One more right pair and no other difference: every resample of the paradigm is between 0 and 1.
    assert summary["paradigms"]["a"]["difference"]["sum"] == 0.5
    assert summary["paradigms"]["a"]["interval"]["sum"] == [0.0, 1.0]
    assert summary["paradigms"]["b"]["interval"]["sum"] == [-0.5, -0.5]


def test_intervals_are_scipy_s() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.choice([0.0, 0.5, 1.0], (2, 300), p=[0.3, 0.1, 0.6])
    second[:150] = first[:150]

    def mean_difference(one: np.ndarray, two: np.ndarray, axis: int) -> np.ndarray:
        return (one - two).mean(axis=axis)

    expected = bootstrap(
        (first, second), mean_difference, paired=True, vectorized=True, method="percentile", rng=0
    ).confidence_interval
    assert paired_interval(first - second) == pytest.approx([expected.low, expected.high], abs=0.01)
    assert paired_interval(np.zeros(10)) == [0.0, 0.0]
