"""Answers from a fine-tuned checkpoint: of a prepared split, or of any text and questions."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.finetuning.squad.criterion import SPAN_HEAD
from fairseq_maelm.finetuning.squad.dataset import SquadDataset
from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.reading import Question, SquadFile
from fairseq_maelm.finetuning.squad.spans import best_spans, window_rows
from fairseq_maelm.models.predicting import predict

# Tokens of a batch. Without gradients that is little memory, and enough work for any processor.
_BATCH_TOKENS = 16_384


class SpanAnswer(NamedTuple):
    """An answer that a model proposes.

    Attributes:
        text: a substring of the context; "" is no answer.
        begin: its first character in the context; -1 for no answer.
        end: the character after its last; -1 for no answer.
        score: sum of the logits of its first and its last token.
        probability: among the answers of the list that it stands in, in [0, 1].
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


class Candidates(NamedTuple):
    """The K best spans of each of W windows.

    Attributes:
        first: <int64>[W, K] first piece in the context.
        last: <int64>[W, K] last piece.
        score: <float32>[W, K] -inf where there are fewer.
        rows: <WINDOW_DTYPE>[W] the best of each and the score of no answer.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    score: NDArray[np.float32]
    rows: NDArray[np.void]


def check_answers(hub: Any) -> None:
    """Refuse a checkpoint that cannot answer."""
    if SPAN_HEAD not in hub.model.classification_heads:
        raise ValueError(
            "this checkpoint was not fine-tuned to answer questions: give one of the task maelm_squad (see "
            "examples/squad)"
        )


def score_windows(hub: Any, dataset: SquadDataset, kept: int, progress: bool = False) -> Candidates:
    """Run a model over all windows.

    Args:
        hub: ``MaelmHubInterface`` of a checkpoint of the task ``maelm_squad``.
        dataset: the windows, not of training.
        kept: K.
        progress: show a progress bar.
    """

    def spans_of(batch: dict[str, Any]) -> Iterable[Any]:
        logits, _ = hub.model(**batch["net_input"], classification_head_name=SPAN_HEAD)
        masks, cfg = (batch["context_mask"], batch["start_mask"]), hub.task.cfg
        spans = best_spans(logits, *masks, cfg.n_best, cfg.max_answer_length, kept)
        shift = batch["shift"][:, None]
        columns = [tensor.cpu().numpy() for tensor in (spans.first + shift, spans.last + shift, spans.score)]
        return zip(*columns, window_rows(spans, batch["id"], batch["shift"]))

    windows = predict(
        hub.model,
        dataset.sizes,
        lambda places: dataset.collater(places.tolist()),
        spans_of,
        _BATCH_TOKENS,
        progress="windows" if progress else None,
    )
    return Candidates(*(np.stack(column) for column in zip(*windows)))


def n_best_lists(dataset: SquadDataset, candidates: Candidates, n_best: int, null: bool) -> list[list[SpanAnswer]]:
    """The best answers of each question with different texts, the best first.

    Args:
        dataset: the windows.
        candidates: of all of them.
        n_best: length of a list at most, no answer included.
        null: whether no answer is one of the answers.
    """
    lists = []
    for question, (begin, end) in enumerate(zip(dataset.windows.first, dataset.windows.first[1:])):
        scores = candidates.score[begin:end].ravel()
        first, last = candidates.first[begin:end].ravel(), candidates.last[begin:end].ravel()
        found: dict[str, tuple[int, int, float]] = {}
        if null:
            found[""] = (-1, -1, float(candidates.rows["null"][begin:end].min()))
        for place in np.argsort(-scores, kind="stable"):
            if len(found) == n_best or not np.isfinite(scores[place]):
                break
            pieces = (question, int(first[place]), int(last[place]))
            span = dataset.split.characters(*pieces)
            found.setdefault(dataset.split.answer_text(*pieces), (*span, float(scores[place])))
        lists.append(_with_probabilities(found))
    return lists


def _with_probabilities(found: dict[str, tuple[int, int, float]]) -> list[SpanAnswer]:
    highest = max(score for _, _, score in found.values())
    total = sum(math.exp(score - highest) for _, _, score in found.values())
    answers = [SpanAnswer(text, *rest, math.exp(rest[2] - highest) / total) for text, rest in found.items()]
    return sorted(answers, key=lambda answer: -answer.score)


def answer_questions(
    hub: Any, context: str, questions: Sequence[str], progress: bool = False
) -> list[list[SpanAnswer]]:
    """Answer questions about a text of any length.

    Args:
        hub: ``MaelmHubInterface`` of a checkpoint of the task ``maelm_squad``.
        context: the text.
        questions: any number.
        progress: show a progress bar.

    Returns:
        for each question its n-best list with no answer as one of the answers; ``choose`` takes one of it.
    """
    check_answers(hub)
    if any(not question.strip() for question in questions):
        raise ValueError("a question is empty")
    if not questions:
        return []
    asked = [Question(str(number), question, 0, [], None, True) for number, question in enumerate(questions)]
    split, _ = build_split(hub.tokenizer.encoder, SquadFile("2.0", [context], asked, False, {}))
    dataset = hub.task.dataset_of(split, "questions")
    kept = hub.task.cfg.n_best
    return n_best_lists(dataset, score_windows(hub, dataset, kept, progress), kept + 1, null=True)


def choose(answers: Sequence[SpanAnswer], threshold: float) -> SpanAnswer:
    """The answer to give.

    Args:
        answers: an n-best list with no answer as one of them.
        threshold: no answer is given where it scores higher than the best text by more than this, in logits.
    """
    null = next(answer for answer in answers if answer.begin < 0)
    best = next(answer for answer in answers if answer.begin >= 0)
    return null if null.score - best.score > threshold else best
