"""Answers to questions about a text, by a checkpoint behind the hub interface."""

from typing import Optional

from fairseq_maelm.finetuning.squad.predict import SpanAnswer, answer_questions, choose
from fairseq_maelm.models.hub import MaelmHubInterface

__all__ = ["answer"]


def answer(hub: MaelmHubInterface, question: str, context: str, threshold: Optional[float] = None) -> SpanAnswer:
    """Answer a question about a text of any length.

    Args:
        hub: of a checkpoint of the task ``maelm_squad``.
        question: the question.
        context: the text.
        threshold: no answer is given where it scores higher than the best text by more than this, in logits;
            infinity always gives a text. By default the task's ``--null-threshold``.

    Returns:
        the answer with its characters in ``context``; ``text`` is "" where there is none.

    Raises:
        ValueError: if the checkpoint cannot answer, or the question or the context is empty.
    """
    answers = answer_questions(hub, context, [question])[0]
    return choose(answers, hub.task.cfg.null_threshold if threshold is None else threshold)
