"""The metrics of SQuAD 1.1 and 2.0, as the official scripts evaluate-v1.1 and evaluate-v2.0 define them.

A prediction is compared with each of a question's answers and the best comparison counts. Both are normalized: lower
case, no punctuation, no articles, single spaces. ``exact`` asks for equal texts, ``f1`` is the harmonic mean of
precision and recall of their words, counted as often as they occur.

In 2.0 a question without an answer expects the empty text. A prediction file may come with the odds of no answer for
each question; where they exceed a threshold, "no answer" is scored in the prediction's place.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Of the odds of no answer where no threshold is given: of probabilities as in the official script, and of logits.
OFFICIAL_THRESHOLD = 1.0
LOGIT_THRESHOLD = 0.0


def normalize_answer(text: str) -> str:
    """Lower-case a text, take punctuation (ASCII's) and articles out of it, and put single spaces between its words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1_score(gold: str, predicted: str, empty_matches_empty: bool = True) -> float:
    """Return the F1 of the words of two normalized texts, in [0, 1]; two texts without words match in version 2.0."""
    gold_words, predicted_words = gold.split(), predicted.split()
    if not gold_words or not predicted_words:
        return float(empty_matches_empty and gold_words == predicted_words)
    common = sum((Counter(gold_words) & Counter(predicted_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def right_texts(answers: Sequence[str], version: str) -> tuple[str, ...]:
    """Normalize a question's answers.

    In version 2.0 those that normalize to nothing are left out, and one empty text stands for no answer.
    """
    texts = tuple(map(normalize_answer, answers))
    return tuple(filter(None, texts)) or ("",) if version == "2.0" else texts


class RawScores(NamedTuple):
    """Scores [Q] of questions before any threshold, in the order of the data."""

    exact: NDArray[np.float64]  # in {0, 1}
    f1: NDArray[np.float64]  # in [0, 1]
    has_answer: NDArray[np.bool_]
    answered: NDArray[np.bool_]  # whether the prediction is a text that is not empty


def raw_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str | None], version: str) -> RawScores:
    """Score each of Q predictions against its question's answers; one that is None is always wrong."""
    exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for number, (own, prediction) in enumerate(zip(answers, predictions, strict=True)):
        if prediction is not None:
            right, predicted = right_texts(own, version), normalize_answer(prediction)
            exact[number] = float(predicted in right)
            f1[number] = max((f1_score(text, predicted, version == "2.0") for text in right), default=0.0)
    return RawScores(
        exact,
        f1,
        np.array([len(own) > 0 for own in answers], dtype=bool),
        np.array([bool(prediction) for prediction in predictions], dtype=bool),
    )


def best_threshold(
    scores: NDArray[np.float64], raw: RawScores, odds: NDArray[np.float64], order: NDArray[np.int64]
) -> tuple[float, float]:
    """Find the highest mean score in percent that any threshold of the odds gives, and that threshold.

    Starting from no answer everywhere, questions are answered one after the other with growing odds. An answered
    question that has an answer adds its score; one that has none takes its point away, unless its prediction is empty.
    The first best place counts. As in the official script, questions of equal odds are answered one at a time, in the
    order of their file, although no threshold can tell them apart; and before the first the threshold is 0.
    ``scores`` are exact or F1 of ``raw``, and ``order`` [Q] the questions in the order of the file with the odds.
    """
    walk = order[np.argsort(odds[order], kind="stable")]
    gains = np.where(raw.has_answer, scores, -raw.answered.astype(np.float64))[walk]
    # One sum after the other, as the script does it, and not in pairs: near ties are then decided alike.
    totals = np.cumsum(np.concatenate([[float((~raw.has_answer).sum())], gains]))
    best = int(np.argmax(totals))
    return 100.0 * float(totals[best]) / len(scores), float(odds[walk[best - 1]]) if best else 0.0


def squad_metrics(
    raw: RawScores,
    version: str,
    odds: NDArray[np.float64] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
    order: NDArray[np.int64] | None = None,
) -> dict[str, float]:
    """Return the metrics in percent, under the official names and in their order.

    These are ``exact``, ``f1`` and ``total``; in version 2.0 the same as ``HasAns_...`` for questions with an answer
    and as ``NoAns_...`` for those without one, where there are any; with odds also ``best_exact``, ``best_f1`` and
    ``best_..._thresh``. A question whose odds [Q] exceed the threshold gets no answer; without odds every prediction
    is taken as it is. ``order`` [Q] of the questions in the file with the odds decides ties.
    """
    exact, f1 = raw.exact, raw.f1
    if odds is not None:
        exact, f1 = (np.where(odds > threshold, ~raw.has_answer, scores) for scores in (exact, f1))
    metrics: dict[str, float] = {"exact": _mean(exact), "f1": _mean(f1), "total": len(exact)}
    if version == "1.1":
        return metrics
    for name, chosen in (("HasAns", raw.has_answer), ("NoAns", ~raw.has_answer)):
        if chosen.any():
            metrics |= {f"{name}_exact": _mean(exact[chosen]), f"{name}_f1": _mean(f1[chosen])}
            metrics[f"{name}_total"] = int(chosen.sum())
    if odds is not None:
        order = np.arange(len(odds)) if order is None else order
        for name, scores in (("exact", raw.exact), ("f1", raw.f1)):
            metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best_threshold(scores, raw, odds, order)
    return metrics


def metric_names(version: str, has_answer: Sequence[bool]) -> list[str]:
    """Return the names of the metrics in percent, and of the thresholds, that a validation set of this kind has."""
    nothing, flags = np.zeros(len(has_answer)), np.array(has_answer, dtype=bool)
    metrics = squad_metrics(RawScores(nothing, nothing, flags, flags), version, nothing if version == "2.0" else None)
    return [name for name in metrics if not name.endswith("total")]


def score_predictions(
    answers: Mapping[str, Sequence[str]],
    version: str,
    predictions: Mapping[str, str],
    odds: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Score a predictions file as the official script does; see ``squad_metrics``.

    All are by the ids of the questions: the right answers in the order of the data, the texts that are predicted, and
    for version 2.0 the odds of no answer. ``report`` is told what is left aside, or scored 0.
    """
    missing = [identity for identity in answers if identity not in predictions]
    if missing and version == "2.0":
        raise ValueError(f"{len(missing)} of {len(answers)} questions have no prediction (the first: {missing[0]})")
    if missing:
        report(f"{len(missing)} of {len(answers)} questions have no prediction and score 0 (the first: {missing[0]})")
    surplus = [identity for identity in predictions if identity not in answers]
    if surplus:
        report(f"{len(surplus)} predictions belong to no question and are left aside (the first: {surplus[0]})")
    raw = raw_scores(list(answers.values()), [predictions.get(key) for key in answers], version)
    if odds is None:
        return squad_metrics(raw, version)
    if missing := [identity for identity in answers if identity not in odds]:
        raise ValueError(f"{len(missing)} of {len(answers)} questions have no odds (the first: {missing[0]})")
    number = {identity: index for index, identity in enumerate(answers)}
    order = np.array([number[identity] for identity in odds if identity in number], dtype=np.int64)
    given = np.array([odds[key] for key in answers], dtype=np.float64)
    return squad_metrics(raw, version, given, threshold, order)


def _mean(scores: NDArray[np.float64]) -> float:
    # One after the other, as the script adds them up.
    return 100.0 * sum(scores.tolist()) / len(scores)
