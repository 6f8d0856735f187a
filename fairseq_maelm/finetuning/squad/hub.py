"""The hub interface's answers to questions about a text."""

from typing import Any, Optional

from fairseq_maelm.finetuning.squad.inference import SpanAnswer, answer_questions, choose


class AnswersQuestions:
    """Methods of the hub interface; see there for its attributes."""

    task: Any

    def answer(self, question: str, context: str, threshold: Optional[float] = None) -> SpanAnswer:
        """Answer a question about a text of any length, with a checkpoint of the task ``maelm_squad``.

        Args:
            question: the question.
            context: the text.
            threshold: no answer is given where it scores higher than the best text by more than this, in logits;
                infinity always gives a text. By default the task's ``--null-threshold``.

        Returns:
            the answer with its characters in ``context``; ``text`` is "" where there is none.

        Raises:
            ValueError: if the checkpoint cannot answer, or the question or the context is empty.
        """
        answers = answer_questions(self, context, [question])[0]
        return choose(answers, self.task.cfg.null_threshold if threshold is None else threshold)
