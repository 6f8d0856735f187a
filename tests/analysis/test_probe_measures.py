"""The measures of frozen states, compared with scikit-learn."""

import logging

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fairseq_maelm.analysis.probes import measures


def rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def test_the_probe_is_scikit_learn_s() -> None:
    train, test = rows(300, 10), rows(2500, 10, 1)
    labels, expected = (np.argmax(each[:, :3] + each[:, 3:6], axis=1) for each in (train, test))
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    plain = LogisticRegression(C=measures.INVERSE_PENALTY, max_iter=1000).fit((train - mean) / deviation, labels)
    found = measures.logistic_regression(train, labels, test, expected)
    assert found == pytest.approx(plain.score((test - mean) / deviation, expected), abs=2e-3)
    assert measures.most_frequent(np.array([2, 1, 1]), np.array([1, 2, 1, 1])) == 0.75


def test_a_probe_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(measures, "_ITERATIONS", 1)
    states, labels = rows(60, 5), np.arange(60) % 2
    with caplog.at_level(logging.INFO):
        measures.logistic_regression(states, labels, states, labels)
    assert "stopped after 1 iterations" in caplog.text
