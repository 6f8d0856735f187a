"""The metrics of the official scripts for SQuAD 1.1 and 2.0.

A prediction is compared with each right answer of its question, and the best score counts. Both texts are normalized:
lower case, no punctuation, no articles, single spaces. ``exact`` requires equal texts; ``f1`` is the harmonic mean of
precision and recall over the multisets of words.

In 2.0 the right answer to an unanswerable question is the empty text. A prediction file may come with the odds of no
answer for each question; if they exceed a threshold, "no answer" is scored instead of the prediction.
"""

import logging
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Default thresholds of the odds of no answer: probabilities, as in the official script, and logits.
OFFICIAL_THRESHOLD = 1.0
LOGIT_THRESHOLD = 0.0


def normalize_answer(text: str) -> str:
    """Lower-case a text, remove ASCII punctuation and articles, and put single spaces between its words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1_score(gold: str, predicted: str, empty_matches_empty: bool = True) -> float:
    """Return word F1 between two normalized texts, in [0, 1]; in version 2.0 two empty texts match."""
    gold_words, predicted_words = gold.split(), predicted.split()
    if not gold_words or not predicted_words:
        return float(empty_matches_empty and gold_words == predicted_words)
    common = sum((Counter(gold_words) & Counter(predicted_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def right_texts(answers: Sequence[str], version: str) -> tuple[str, ...]:
    """Normalize a question's answers; in version 2.0 drop empty ones, and return [""] if no answer is left."""
    texts = tuple(map(normalize_answer, answers))
    return tuple(filter(None, texts)) or ("",) if version == "2.0" else texts


class RawScores(NamedTuple):
    """Scores [Q] of questions before applying a threshold, in the order of the data."""

    exact: NDArray[np.float64]  # in {0, 1}
    f1: NDArray[np.float64]  # in [0, 1]
    has_answer: NDArray[np.bool_]
    answered: NDArray[np.bool_]  # whether the prediction is a text that is not empty


def raw_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str | None], version: str) -> RawScores:
    """Score each of Q predictions against its question's answers; a prediction of None is always wrong."""
    exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (own, prediction) in enumerate(zip(answers, predictions, strict=True)):
        if prediction is not None:
            right, predicted = right_texts(own, version), normalize_answer(prediction)
            exact[row] = float(predicted in right)
            f1[row] = max((f1_score(text, predicted, version == "2.0") for text in right), default=0.0)
    return RawScores(
        exact,
        f1,
        np.array([len(own) > 0 for own in answers], dtype=bool),
        np.array([bool(prediction) for prediction in predictions], dtype=bool),
    )


def best_threshold(
    scores: NDArray[np.float64], raw: RawScores, odds: NDArray[np.float64], order: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the highest mean score (in percent) over all no-answer thresholds, and the threshold that reaches it.

    Initially, "no answer" is predicted for all questions. Then they are answered one by one, by ascending odds: an
    answerable question adds its score to the total; an unanswerable one subtracts 1, unless its prediction is empty.
    The first of several equal maxima counts. As in the official script, the threshold before the first question is 0,
    and questions with equal odds are also answered one by one, although no threshold separates them.

    ``scores`` [Q] are the exact or F1 scores of ``raw``; ``order`` [Q] has the question indices in the order of the
    odds file, which decides between equal odds.
    """
    walk = order[np.argsort(odds[order], kind="stable")]
    gains = np.where(raw.has_answer, scores, -raw.answered.astype(np.float64))[walk]
    # Summed sequentially as in the official script, not pairwise, so that near ties are decided alike.
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
    """Return the metrics in percent, with the official names and in their order.

    They are ``exact``, ``f1`` and ``total``; in version 2.0 also ``HasAns_...`` for answerable and ``NoAns_...`` for
    unanswerable questions, if there are any, and, with odds, ``best_exact``, ``best_f1`` and ``best_..._thresh``.
    "No answer" is predicted where ``odds`` [Q] exceed the threshold. ``order`` is as in ``best_threshold``.
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
    """Return the names of the metrics and thresholds that are logged for a validation set."""
    nothing, flags = np.zeros(len(has_answer)), np.array(has_answer, dtype=bool)
    metrics = squad_metrics(RawScores(nothing, nothing, flags, flags), version, nothing if version == "2.0" else None)
    return [name for name in metrics if not name.endswith("total")]


def score_predictions(
    answers: Mapping[str, Sequence[str]],
    version: str,
    predictions: Mapping[str, str],
    odds: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
) -> dict[str, float]:
    """Score a predictions file as the official script does; see ``squad_metrics``.

    ``answers`` (in the order of the data), ``predictions`` and ``odds`` are by question id. Missing and ignored
    predictions are logged; in version 2.0 none may be missing.
    """
    if missing := [identity for identity in answers if identity not in predictions]:
        said = f"{len(missing)} of {len(answers)} questions have no prediction (the first has the id {missing[0]!r})"
        if version == "2.0":
            raise ValueError(said)
        logger.warning("%s: they score 0", said)
    if surplus := [identity for identity in predictions if identity not in answers]:
        logger.warning(
            "%d predictions belong to no question and are ignored (the first has the id %r)", len(surplus), surplus[0]
        )
    raw = raw_scores(list(answers.values()), [predictions.get(key) for key in answers], version)
    if odds is None:
        return squad_metrics(raw, version)
    if missing := [identity for identity in answers if identity not in odds]:
        raise ValueError(
            f"{len(missing)} of {len(answers)} questions are missing from the --null-odds file (the first has the id "
            f"{missing[0]!r})"
        )
    rows = {identity: row for row, identity in enumerate(answers)}
    order = np.array([rows[identity] for identity in odds if identity in rows], dtype=np.int64)
    given = np.array([odds[key] for key in answers], dtype=np.float64)
    return squad_metrics(raw, version, given, threshold, order)


def _mean(scores: NDArray[np.float64]) -> float:
    # Summed sequentially, as in the official script.
    return 100.0 * sum(scores.tolist()) / len(scores)
