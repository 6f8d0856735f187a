"""The prepared folder: contexts and questions as token ids, with the characters that each token covers.

The data do not depend on the sequence length or the stride, because windows are cut when the data are loaded. Each
split has two files: ``SPLIT.npz`` with the arrays for training, and ``SPLIT.json`` with the texts for scoring and
prediction.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.finetuning import task_folder

# Stored instead of an answer's first and last piece.
NO_ANSWER = -1
NOT_LOCATED = -2


class Texts(NamedTuple):
    """The texts of a split."""

    version: str  # "1.1" or "2.0"
    contexts: list[str]
    identities: list[str]  # of the questions
    answers: list[list[str]] | None  # the right answers of each question; None if they are unknown


class PreparedSplit:
    """Q questions about C contexts as tokens.

    Args:
        arrays: ``context_tokens`` <uint16 or uint32>[pieces of all contexts]; ``context_begin`` and ``context_end``
            <int32>[pieces of all contexts] (see ``AlignedTokens``); ``context_start`` <int64>[C + 1], the first piece
            of each context; ``question_tokens`` and ``question_start``, the same for questions; ``question_context``
            <int32>[Q], the index of each question's context; ``answers`` <int32>[Q, 2], the first and last piece
            (inclusive) of the first right answer in the context, or ``NO_ANSWER`` or ``NOT_LOCATED`` twice.
        texts: the texts, or the file to read them from.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], texts: Texts | Path) -> None:
        self.arrays = arrays
        self.context_start = arrays["context_start"]
        self.question_start = arrays["question_start"]
        self.question_context = arrays["question_context"]
        self.answers = arrays["answers"]
        self.question_lengths = np.diff(self.question_start)
        # Pieces of each question's context.
        self.context_lengths = np.diff(self.context_start)[self.question_context]
        self._texts = texts

    @cached_property
    def texts(self) -> Texts:
        """The texts, read on first use."""
        return Texts(**read_json(self._texts)) if isinstance(self._texts, Path) else self._texts

    def __len__(self) -> int:
        return len(self.question_context)

    def question(self, number: int) -> NDArray[Any]:
        """Return the tokens [n] of a question."""
        return self.arrays["question_tokens"][self.question_start[number] : self.question_start[number + 1]]

    def context(self, number: int, name: str) -> NDArray[Any]:
        """Return ``tokens``, ``begin`` or ``end`` [pieces] of a context."""
        return self.arrays[f"context_{name}"][self.context_start[number] : self.context_start[number + 1]]

    def characters(self, question: int, first: int, last: int) -> tuple[int, int]:
        """Return the character span of pieces ``first`` to ``last`` (inclusive) in the question's context."""
        start = self.context_start[self.question_context[question]]
        return int(self.arrays["context_begin"][start + first]), int(self.arrays["context_end"][start + last])

    def answer_text(self, question: int, first: int, last: int) -> str:
        """Return the text of pieces ``first`` to ``last`` (inclusive) in the question's context."""
        return self.texts.contexts[self.question_context[question]][slice(*self.characters(question, first, last))]

    def answer_texts(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> list[str]:
        """Return ``answer_text`` for every question; ``first`` and ``last`` are [Q]."""
        return [self.answer_text(*pieces) for pieces in zip(range(len(self)), first.tolist(), last.tolist())]


def load_split(folder: Path | str, split: str) -> PreparedSplit:
    """Open a split of a prepared folder; errors are those of ``task_folder.load_split``."""
    return PreparedSplit(task_folder.load_split(Path(folder), "squad", split), Path(folder) / f"{split}.json")
