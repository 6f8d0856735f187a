"""Batches of windows, each a question with a part of its context.

A sequence is ``<s> question </s> </s> window </s>``. Windows of a context begin at multiples of the stride, up to the
first window that reaches the end of the context.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_maelm.batch import pad_rows, whole_sequences
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.data.windows import cut_windows, most_context
from fairseq_maelm.finetuning.squad.prepare import NOT_LOCATED, PreparedSplit

SPECIAL_TOKENS = 4  # <s> and </s> around the question, and </s> before and after the window
# The target of a window whose question has an answer that is not in its context; the loss ignores it.
NO_TARGET = -100


class Windows(NamedTuple):
    """W windows of Q questions, ordered by question and then by position in the context."""

    question: NDArray[np.int64]  # [W] index of the question
    begin: NDArray[np.int64]  # [W] index of the first context piece in the window
    end: NDArray[np.int64]  # [W] index of the last context piece in the window, plus 1
    first: NDArray[np.int64]  # [Q + 1] first window of each question; the last entry is W


def windows_of(
    question_lengths: NDArray[np.int64], context_lengths: NDArray[np.int64], max_length: int, stride: int
) -> Windows:
    """Cut each question's context, of at least one piece, so that sequences have at most ``max_length`` tokens.

    If the stride is longer than a window, windows are adjacent, so that no piece is lost.
    """
    bounds = []
    for asked, length in zip(question_lengths.tolist(), context_lengths.tolist()):
        room = max_length - SPECIAL_TOKENS - asked
        bounds.append(cut_windows(range(length + 1), room, max(0, room - stride)))
    counts = [len(each) for each in bounds]
    begin, end = np.array([window for each in bounds for window in each], dtype=np.int64).reshape(-1, 2).T
    return Windows(np.repeat(np.arange(len(counts)), counts), begin, end, np.cumsum([0, *counts]))


class SquadDataset(BatchDataset):
    """All windows of a split; ``cfg`` is a ``SquadTaskConfig``.

    Training shuffles the windows and omits questions whose answer was not located. Outside of training, ``start_mask``
    marks each piece only in the window that gives it the most context.
    """

    remedy = "a smaller --max-length"

    def __init__(self, split: PreparedSplit, cfg: Any, dictionary: Dictionary, name: str, training: bool) -> None:
        self.split, self.cfg, self.dictionary, self.name, self.training = split, cfg, dictionary, name, training
        self.question_lengths = np.minimum(split.question_lengths, cfg.max_question_length)
        self.windows = windows_of(self.question_lengths, split.context_lengths, cfg.max_length, cfg.doc_stride)
        first, last = split.answers[self.windows.question].T
        self._owners = [] if training else [self._owners_of(question) for question in range(len(split))]
        self._holds_answer = (first >= self.windows.begin) & (last < self.windows.end)
        lost = first == NOT_LOCATED
        sizes = SPECIAL_TOKENS + self.question_lengths[self.windows.question] + self.windows.end - self.windows.begin
        used = np.flatnonzero(~lost) if training else None
        super().__init__(sizes, "buckets", cfg.seed, fixed_epoch=None if training else 0, used=used)
        held = f"{self._holds_answer.sum():,} windows hold an answer"
        windows = f"{len(self):,} windows of up to {cfg.max_length} tokens"
        self.described = f"{len(split):,} questions in {windows}; {held}"

    @property
    def warnings(self) -> list[str]:
        """What is lost of the data."""
        split, first = self.split, self.split.answers[:, 0]
        held = np.isin(np.arange(len(split)), self.windows.question[self._holds_answer])
        unheld = "have an answer that fits into no window: the target of all their windows is 'no answer'"
        too_long = split.question_lengths > self.cfg.max_question_length
        found = (
            (too_long, "are longer than --max-question-length and are truncated"),
            ((first >= 0) & ~held, unheld),
            (first == NOT_LOCATED, "have an answer that is not in their context: the loss ignores them"),
        )
        return [f"{concerned.sum():,} questions {what}" for concerned, what in found if concerned.any()]

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        """Make a batch of B windows.

        Return ``whole_sequences``; ``target`` <int64>[B, 2], the positions of the answer's first and last token, or 0
        twice if the window does not contain the answer, or ``NO_TARGET`` twice if the answer was not located;
        ``terms``, the number of windows with a target; and ``context_mask`` <bool>[B, S], True at tokens that can begin
        or end an answer. Outside of training also ``start_mask`` <bool>[B, S], True at the tokens that have the most
        context in this window; ``shift`` <int64>[B], context piece index minus position in the sequence; and ``split``,
        the split's name.
        """
        lengths, width = self.sizes[indices], self.width(indices)
        windows = self.windows
        # The position of the context's first piece; negative if the window begins far behind it.
        shift = self.question_lengths[windows.question[indices]] + SPECIAL_TOKENS - 1 - windows.begin[indices]
        answers = self.split.answers[windows.question[indices]].astype(np.int64)
        absent = np.where(answers == NOT_LOCATED, NO_TARGET, 0)
        target = np.where(self._holds_answer[indices, None], answers + shift[:, None], absent)
        tokens, own, best = zip(*map(self._sequence, indices.tolist()))
        batch: dict[str, Any] = {
            **whole_sequences(tokens, lengths, self.dictionary.pad(), width),
            "target": torch.from_numpy(target),
            "terms": int((target[:, 0] != NO_TARGET).sum()),
            "context_mask": torch.from_numpy(pad_rows(own, lengths, 0, width)).bool(),
        }
        if not self.training:
            batch["start_mask"] = torch.from_numpy(pad_rows(best, lengths, 0, width)).bool()
            batch["shift"] = torch.from_numpy(-shift)
            batch["split"] = self.name
        return batch

    def _owners_of(self, question: int) -> NDArray[np.int64]:
        """Return, for each piece of a question's context, the index of the window that gives it the most context."""
        first, last = self.windows.first[question : question + 2]
        bounds = list(zip(self.windows.begin[first:last].tolist(), self.windows.end[first:last].tolist()))
        return first + most_context(bounds, range(bounds[-1][1] + 1))

    def _sequence(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a window's tokens and, unpadded, its rows of ``context_mask`` and ``start_mask``; see ``collate``.

        Tokens without characters cannot be answers. Both masks end with the last context piece.
        """
        question, begin, end = (int(each[index]) for each in self.windows[:3])
        context = self.split.question_context[question]
        pieces, first, last = (self.split.context(context, name)[begin:end] for name in ("tokens", "begin", "end"))
        bos, eos = self.dictionary.bos(), self.dictionary.eos()
        asked = self.split.question(question)[: self.question_lengths[question]]
        own = best = first < last
        if not self.training:
            best = own & (self._owners[question][begin:end] == index)
        before = np.zeros(len(asked) + SPECIAL_TOKENS - 1, dtype=bool)
        tokens = np.concatenate([[bos], asked, [eos, eos], pieces, [eos]])
        return tokens, np.append(before, own), np.append(before, best)
