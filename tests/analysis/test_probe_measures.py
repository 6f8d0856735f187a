"""The measures of frozen states, compared with cases worked by hand and with scikit-learn and scipy."""

import logging

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from fairseq_maelm.analysis.probes import measures
from fairseq_maelm.analysis.probes.inputs import find_repetitions


def rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def test_rank_correlation() -> None:
    first, degrees = np.array([[1.0, 0.0]] * 4), np.radians([0, 30, 60, 90])
    second = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    # Ranks 4, 3, 2, 1 against 4, 3, 1, 2: 1 - 6 * (1 + 1) / (4 * 15). Lengths say nothing.
    assert measures.spearman(3 * first, second, np.array([9.0, 5.0, 1.0, 2.0])) == pytest.approx(0.8)
    assert measures.spearman(first, 2 * second, np.array([4.0, 3.0, 2.0, 1.0])) == pytest.approx(1.0)
    assert measures.spearman(first, first, np.array([4.0, 3.0, 2.0, 1.0])) == 0.0
    assert measures.spearman(first, second, np.ones(4)) == 0.0
    first, second, scores = rows(50, 8), rows(50, 8, 1), np.random.default_rng(2).integers(0, 5, 50)
    cosines = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(first, second)]
    assert measures.spearman(first, second, scores) == pytest.approx(spearmanr(cosines, scores).statistic, abs=1e-3)


def test_whitened_rows_have_the_covariance_of_noise() -> None:
    mixed = 5 + rows(400, 6) @ rows(6, 6, 1) * np.array([10, 3, 1, 1, 0.3, 0.1], dtype=np.float32)
    whitened = measures.fit_whitening(mixed).apply(mixed)
    assert np.allclose(whitened.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(whitened.T @ whitened / 400, np.eye(6), atol=1e-9)
    # The map is affine: it is the same for rows that it was not fitted to.
    assert np.allclose(measures.fit_whitening(mixed).apply(mixed[:3]), whitened[:3])
    # Five rows differ in four directions, and rows that are all alike in none.
    assert measures.fit_whitening(mixed[:5]).apply(mixed).shape == (400, 4)
    assert measures.fit_whitening(np.ones((5, 6))).apply(mixed).shape == (400, 0)


def test_probes_are_scikit_learn_s() -> None:
    train, test = rows(300, 10), rows(2500, 10, 1)
    labels, expected = (np.argmax(each[:, :3] + each[:, 3:6], axis=1) for each in (train, test))
    neighbors = KNeighborsClassifier(1, metric="cosine", algorithm="brute").fit(train, labels)
    assert measures.nearest_neighbor(train, labels, test, expected) == neighbors.score(test, expected)
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


def test_search_and_mean_cosine() -> None:
    texts = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    # The third query is nearest to the first text, then to its own: ranks 1, 1 and 2.
    assert measures.reciprocal_rank(np.array([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0]]), texts) == pytest.approx(2.5 / 3)
    # Of the three pairs one is orthogonal, and two have 45 degrees between them.
    total = measures.normalized(texts).sum(axis=0)
    assert measures.mean_cosine(total, 3) == pytest.approx(2 * 0.5**0.5 / 3)


def test_repetitions_are_of_rare_words_some_words_apart() -> None:
    # "the" makes up half of the text. "cook" occurs twice far apart, "oak" next to itself; "x1" is not a word.
    words = ["cook", "the", "oak", "oak", "the", "x1", "the", "the", "the", "x1", "the", "the", "the", "cook", "the"]
    other = ["a", "the", "b", "the", "c", "the", "d", "the", "e", "the", "f", "the", "g", "the", "h"]
    cases = find_repetitions([words, other], np.random.default_rng(0))
    assert [case.words for case in cases] == [words] and cases[0].place in (0, 13)
    (case,) = cases
    changed = [place for place, (old, new) in enumerate(zip(case.words, case.replaced)) if old != new]
    assert changed == [13 - case.place] and case.replaced[changed[0]] not in ("the", "x1")


def test_a_repeated_word_does_not_replace_itself() -> None:
    """Even if only two words are rare."""
    words = ["the"] * 40
    words[3] = words[20] = words[35] = "cook"
    (case,) = find_repetitions([[*words, "oak"]], np.random.default_rng(0))
    assert (case.replaced.count("cook"), case.replaced.count("oak")) == (1, 3)
    assert find_repetitions([words], np.random.default_rng(0)) == []
