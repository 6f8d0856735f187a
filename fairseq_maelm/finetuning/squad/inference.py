"""Question answering with a checkpoint opened through the hub interface."""

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.finetuning.predicted import Predicted
from fairseq_maelm.finetuning.squad.dataset import SquadDataset
from fairseq_maelm.finetuning.squad.prepare import build_split, load_split
from fairseq_maelm.finetuning.squad.reading import Question, SquadFile, read_squad
from fairseq_maelm.finetuning.squad.spans import best_of_questions, null_odds, window_rows
from fairseq_maelm.finetuning.squad.task import SPAN_HEAD
from fairseq_maelm.models.batched_inference import predict
from fairseq_maelm.models.hub import MaelmHubInterface
from fairseq_maelm.options import UsageError
from fairseq_maelm.tasks.finetuning import announced
from fairseq_maelm.text.cleaning import checked_text, checked_texts


class SpanAnswer(NamedTuple):
    """A possible answer: a substring of the context, or "" for no answer."""

    text: str
    begin: int  # its first character in the context; -1 for no answer
    end: int  # the character after its last; -1 for no answer
    score: float  # sum of the logits of its first and its last token
    probability: float  # among the answers of its list, in [0, 1]


def answer(hub: MaelmHubInterface, question: str, context: str, threshold: float | None = None) -> SpanAnswer:
    """Answer a question about a text of any length.

    Args:
        hub: a checkpoint of the task ``maelm_squad``.
        question: the question.
        context: the text.
        threshold: "no answer" is returned if (score of no answer - score of the best text) > ``threshold``, in logits;
            infinity always returns a text. By default the task's ``--null-threshold``, or infinity if the
            checkpoint was trained on SQuAD 1.1.

    Raises:
        ValueError: the checkpoint cannot answer, or the question or the context is empty.
    """
    return choose(hub, answer_questions(hub, context, [question])[0], threshold)


def choose(hub: MaelmHubInterface, answers: Sequence[SpanAnswer], threshold: float | None) -> SpanAnswer:
    """Choose one of a question's answers from ``answer_questions``; ``threshold`` is as in ``answer``."""
    if threshold is None:
        labels: Any = hub.labels
        threshold = float(labels.threshold)
    if math.isnan(threshold):
        raise ValueError("the threshold must be a number, in logits, or infinity, but not NaN")
    null = next(each for each in answers if each.begin < 0)
    best = next(each for each in answers if each.begin >= 0)
    return null if null.score - best.score > threshold else best


def answer_questions(
    hub: MaelmHubInterface, context: str, questions: Sequence[str], progress: bool = False
) -> list[list[SpanAnswer]]:
    """Return the best answers to each question about a text, the best first; one of them is "no answer".

    Raise a ValueError if the checkpoint cannot answer, or a question or the context is empty.
    """
    if SPAN_HEAD not in hub.model.classification_heads:
        raise ValueError(
            "this checkpoint was not fine-tuned to answer questions: first run `maelm finetune` on a folder of "
            "`maelm prepare squad`"
        )
    context = checked_text(context, "the context")
    questions = checked_texts(questions, "questions")
    if any(not question.strip() for question in questions):
        raise ValueError("a question is empty")
    asked = [Question(str(number), question, 0, [], None, True) for number, question in enumerate(questions)]
    split, _ = build_split(hub.tokenizer.encoder, SquadFile("2.0", [context], asked, False, {}))
    dataset = announced("questions", hub.task.dataset_of(split, "questions"))
    candidates = score_windows(hub, dataset, hub.task.cfg.n_best, progress=progress)
    return [_best_answers(dataset, candidates, question) for question in range(len(questions))]


def score_windows(
    hub: MaelmHubInterface, dataset: SquadDataset, kept: int, batch_size: int = 32, progress: bool = False
) -> NDArray[np.void]:
    """Return the K = ``kept`` best answers <WINDOW_DTYPE>[W, K] of each window in an evaluation dataset."""

    def forward(batch: dict[str, Any]) -> NDArray[np.void]:
        return window_rows(hub.task.scores(hub.model, batch), batch, hub.task.cfg, kept)

    collate, bar = (lambda places: dataset.collater(places.tolist())), "windows" if progress else None
    return np.stack(predict(hub.model, dataset.sizes, collate, forward, batch_size=batch_size, progress=bar))


def _best_answers(dataset: SquadDataset, candidates: NDArray[np.void], question: int) -> list[SpanAnswer]:
    """Return "no answer" and up to ``--n-best`` different texts, sorted from best to worst."""
    windows = slice(*dataset.windows.first[question : question + 2])
    rows = candidates[windows].ravel()
    found = {"": (-1, -1, float(rows["null"].min()))}
    for row in rows[np.argsort(-rows["score"], kind="stable")]:
        if len(found) > dataset.cfg.n_best or not np.isfinite(row["score"]):
            break
        pieces = (question, int(row["first"]), int(row["last"]))
        found.setdefault(dataset.split.answer_text(*pieces), (*dataset.split.characters(*pieces), float(row["score"])))
    highest = max(score for _, _, score in found.values())
    total = sum(math.exp(score - highest) for _, _, score in found.values())
    answers = [SpanAnswer(text, *rest, math.exp(rest[2] - highest) / total) for text, rest in found.items()]
    return sorted(answers, key=lambda each: -each.score)


def predict_input(hub: MaelmHubInterface, args: argparse.Namespace) -> Predicted:
    """Answer the questions of a SQuAD file or of a prepared split."""
    if args.input.is_dir():
        split = load_split(args.input, args.split)
    else:
        split, _ = build_split(hub.tokenizer.encoder, read_squad(args.input), "questions")
    may_have_none, asks = hub.task.version_of(split) == "2.0", (args.null_odds or args.threshold) is not None
    if asks and not may_have_none:
        # Questions alone do not show their version, and checkpoints of earlier versions do not keep it.
        may_have_none = str(hub.task.cfg.squad_version) == "auto" and split.texts.answers is None
        if not may_have_none:
            raise UsageError("all questions of SQuAD 1.1 have answers: omit --threshold and --null-odds")
    dataset = announced("questions", hub.task.dataset_of(split, "questions"))
    windows = score_windows(hub, dataset, 1, args.batch_size, progress=True)[:, 0]
    best = best_of_questions(windows, dataset.windows.first)
    answers = dict(zip(split.texts.identities, split.answer_texts(best["first"], best["last"])))
    threshold = hub.task.cfg.null_threshold if args.threshold is None else args.threshold
    odds = {}
    if may_have_none:
        odds = dict(zip(answers, null_odds(best).tolist()))
        answers = {identity: "" if odds[identity] > threshold else text for identity, text in answers.items()}
    metrics = None if split.texts.answers is None else hub.task.official_metrics(dataset, best, threshold)
    files = {} if args.null_odds is None else {args.null_odds: odds}
    return Predicted(json.dumps(answers, indent=1) + "\n", metrics, files=files)
