"""Windows of questions and contexts as batches."""

import logging
from typing import Any, Dict

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.finetuning.squad.prepared import NOT_LOCATED, PreparedSplit
from fairseq_maelm.finetuning.squad.windows import SPECIAL_TOKENS, best_context, cut_windows, windows_with

logger = logging.getLogger(__name__)

# The target of a window whose question has an answer that its context does not hold: no part of the loss.
NO_TARGET = -100


class SquadDataset(BatchDataset):
    """All windows of a split.

    Args:
        split: the questions and their contexts.
        cfg: ``SquadTaskConfig``; how sequences are made, and the seed of their order.
        dictionary: fairseq's.
        name: of the split, for messages and for the samples.
        training: whether windows are shuffled, and questions without a located answer left out. Otherwise samples say
            which pieces have their best context in the window, which is what decoding needs.
    """

    remedy = "a smaller --max-length"

    def __init__(self, split: PreparedSplit, cfg: Any, dictionary: Dictionary, name: str, training: bool) -> None:
        self.split = split
        self.cfg = cfg
        self.dictionary = dictionary
        self.name = name
        self.training = training
        self.question_lengths = np.minimum(split.question_lengths, cfg.max_question_length)
        self.windows = cut_windows(self.question_lengths, split.context_lengths, cfg.max_length, cfg.doc_stride)
        self._holds_answer = windows_with(self.windows, split.answers)
        lost = split.answers[self.windows.question, 0] == NOT_LOCATED
        sizes = SPECIAL_TOKENS + self.question_lengths[self.windows.question] + self.windows.end - self.windows.begin
        used = np.flatnonzero(~lost) if training else None
        super().__init__(sizes, "buckets", cfg.seed, fixed_epoch=None if training else 0, used=used)
        self._report()

    def _report(self) -> None:
        split, windows = self.split, self.windows
        held = np.zeros(len(split), dtype=bool)
        held[windows.question[self._holds_answer]] = True
        logger.info(
            "%s: %s questions in %s windows of up to %d tokens; %s windows hold an answer",
            *(self.name, f"{len(split):,}", f"{len(windows.question):,}", self.cfg.max_length),
            f"{int(self._holds_answer.sum()):,}",
        )
        for concerned, what in (
            (split.question_lengths > self.cfg.max_question_length, "are longer than may be and are cut"),
            (
                (split.answers[:, 0] >= 0) & ~held,
                "have an answer that no window holds whole: all their windows say 'no answer'",
            ),
            (
                split.answers[:, 0] == NOT_LOCATED,
                "have an answer that is not in their context: no part of the loss",
            ),
        ):
            if concerned.any():
                logger.warning("%s: %s questions %s", self.name, f"{int(concerned.sum()):,}", what)

    def collate(self, indices: np.ndarray) -> Dict[str, Any]:
        """Make a batch of B windows.

        Args:
            indices: <int64>[B] numbers of windows.

        Returns:
            ``ntokens``; ``net_input`` with ``src_tokens`` <int64>[B, S] and ``src_lengths`` <int64>[B]; ``target``
            <int64>[B, 2] the positions of the answer's first and last token, twice 0 where the window does not hold it,
            or ``NO_TARGET``; ``context_mask`` <bool>[B, S], True at tokens that can begin or end an answer. For
            evaluation also ``start_mask`` <bool>[B, S], True at those that have their best context in this window,
            ``shift`` <int64>[B], which added to a position gives the number of the piece in the context, and ``split``.
        """
        lengths = self.sizes[indices]
        tokens = np.full((len(indices), lengths.max()), self.dictionary.pad(), dtype=np.int64)
        context_mask, start_mask = np.zeros(tokens.shape, dtype=bool), np.zeros(tokens.shape, dtype=bool)
        for row, (index, length) in enumerate(zip(indices.tolist(), lengths.tolist())):
            tokens[row, :length], own = self._sequence(index)
            place = slice(length - 1 - len(own), length - 1)
            context_mask[row, place] = own
            if not self.training:
                start_mask[row, place] = own & self._best(index)
        batch: Dict[str, Any] = {
            "ntokens": int(lengths.sum()),
            "net_input": {"src_tokens": torch.from_numpy(tokens), "src_lengths": torch.from_numpy(lengths)},
            "target": torch.from_numpy(self._targets(indices)),
            "context_mask": torch.from_numpy(context_mask),
        }
        if not self.training:
            batch["start_mask"] = torch.from_numpy(start_mask)
            batch["shift"] = torch.from_numpy(-self._shift(indices))
            batch["split"] = self.name
        return batch

    def _sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens <int64>[n] of a window, and which pieces <bool>[pieces] stand for characters of their own."""
        question, begin, end = (int(each[index]) for each in self.windows[:3])
        context = self.split.question_context[question]
        pieces, first, last = (self.split.context(context, name)[begin:end] for name in ("tokens", "begin", "end"))
        bos, eos = self.dictionary.bos(), self.dictionary.eos()
        asked = self.split.question(question)[: self.question_lengths[question]]
        return np.concatenate([[bos], asked, [eos, eos], pieces, [eos]]), first < last

    def _best(self, index: int) -> np.ndarray:
        first, last = self.windows.first[self.windows.question[index] :][:2]
        return best_context(self.windows.begin[first:last], self.windows.end[first:last], int(index - first))

    def _shift(self, indices: np.ndarray) -> np.ndarray:
        """<int64>[B], the position of the context's first piece, which may lie before the window."""
        return self.question_lengths[self.windows.question[indices]] + SPECIAL_TOKENS - 1 - self.windows.begin[indices]

    def _targets(self, indices: np.ndarray) -> np.ndarray:
        answers = self.split.answers[self.windows.question[indices]].astype(np.int64)
        held = self._holds_answer[indices, None]
        absent = np.where(answers == NOT_LOCATED, NO_TARGET, 0)
        return np.where(held, answers + self._shift(indices)[:, None], absent)
