"""Windows of questions and contexts as batches."""

import logging
from typing import Any, Dict, NamedTuple, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.order import order_by_length
from fairseq_maelm.finetuning.squad.prepared import NOT_LOCATED, PreparedSplit
from fairseq_maelm.finetuning.squad.windows import SPECIAL_TOKENS, best_context, cut_windows, windows_with

logger = logging.getLogger(__name__)

# The target of a window whose question has an answer that its context does not hold: no part of the loss.
NO_TARGET = -100


class Format(NamedTuple):
    """How sequences are made.

    Attributes:
        max_length: tokens of a sequence at most.
        stride: pieces between the beginnings of a context's windows.
        max_question_length: tokens of a question at most; the rest is cut off.
        bos: the symbol <s>.
        eos: the symbol </s>.
        pad: the symbol for padding.
    """

    max_length: int
    stride: int
    max_question_length: int
    bos: int
    eos: int
    pad: int


class SquadDataset(FairseqDataset):
    """All windows of a split.

    Args:
        split: the questions and their contexts.
        form: how sequences are made.
        name: of the split, for messages and for the samples.
        training: whether windows are shuffled, and questions without a located answer left out. Otherwise samples say
            which pieces have their best context in the window, which is what decoding needs.
        seed: of the order.
    """

    def __init__(self, split: PreparedSplit, form: Format, name: str, training: bool, seed: int = 0) -> None:
        self.split = split
        self.form = form
        self.name = name
        self.training = training
        self.seed = seed
        self.epoch = 1
        self.question_lengths = np.minimum(split.question_lengths, form.max_question_length)
        self.windows = cut_windows(self.question_lengths, split.context_lengths, form.max_length, form.stride)
        self._holds_answer = windows_with(self.windows, split.answers)
        lost = split.answers[self.windows.question, 0] == NOT_LOCATED
        self._used = np.flatnonzero(~lost) if training else np.arange(len(lost))
        self._sizes = (
            SPECIAL_TOKENS + self.question_lengths[self.windows.question] + self.windows.end - self.windows.begin
        )
        self._report()

    def _report(self) -> None:
        split, windows = self.split, self.windows
        answerable = split.answers[:, 0] >= 0
        held = np.zeros(len(split), dtype=bool)
        held[windows.question[self._holds_answer]] = True
        logger.info(
            "%s: %s questions in %s windows of up to %d tokens; %s windows hold an answer",
            *(self.name, f"{len(split):,}", f"{len(windows.question):,}", self.form.max_length),
            f"{int(self._holds_answer.sum()):,}",
        )
        for count, what in (
            ((split.question_lengths > self.form.max_question_length).sum(), "are longer than may be and are cut"),
            (
                (answerable & ~held).sum(),
                "have an answer that no window holds whole: all their windows say 'no answer'",
            ),
            (
                (split.answers[:, 0] == NOT_LOCATED).sum(),
                "have an answer that is not in their context: no part of the loss",
            ),
        ):
            if count:
                logger.warning("%s: %s questions %s", self.name, f"{int(count):,}", what)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle anew from now on; called by fairseq before an epoch's batches are made."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: batches depend on the epoch alone, so that a resumed run has those of an uninterrupted one."""
        return False

    @property
    def sizes(self) -> np.ndarray:
        """<int64>[W], tokens of each window's sequence."""
        return self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def num_tokens(self, index: int) -> int:
        """What a window adds to ``--max-tokens``."""
        return int(self._sizes[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """<int64>[indices], ``num_tokens`` of many."""
        return self._sizes[indices]

    def size(self, index: int) -> int:
        """Tokens of the sequence."""
        return int(self._sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """<int64>[windows in use], near-equal lengths together, in training in a new random order each epoch."""
        generator = np.random.default_rng([self.seed, self.epoch if self.training else 0])
        return self._used[order_by_length(self._sizes[self._used], generator.random(len(self._used)))]

    def __getitem__(self, index: int) -> int:
        """The index itself: the collater reads a batch at once."""
        return int(index)

    def collater(self, samples: Sequence[int]) -> Dict[str, Any]:
        """Make a batch of B windows.

        Args:
            samples: <int>[B] numbers of windows.

        Returns:
            fairseq's sample: ``id`` <int64>[B], ``nsentences``, ``ntokens``; ``net_input`` with ``src_tokens``
            <int64>[B, S] and ``src_lengths`` <int64>[B]; ``target`` <int64>[B, 2] the positions of the answer's first
            and last token, twice 0 where the window does not hold it, or ``NO_TARGET``; ``context_mask`` <bool>[B, S],
            True at tokens that can begin or end an answer. For evaluation also ``start_mask`` <bool>[B, S], True at
            those that have their best context in this window, ``shift`` <int64>[B], which added to a position gives
            the number of the piece in the context, and ``split``. Empty for no window.
        """
        if not len(samples):
            return {}
        indices = np.array(samples, dtype=np.int64)
        lengths = self._sizes[indices]
        rows, context_mask, start_mask = [], np.zeros((len(indices), lengths.max()), dtype=bool), []
        for row, index in enumerate(indices.tolist()):
            tokens, own = self._sequence(index)
            rows.append(tokens)
            context_mask[row, len(tokens) - 1 - len(own) : len(tokens) - 1] = own
            if not self.training:
                start_mask.append(np.zeros(context_mask.shape[1], dtype=bool))
                start_mask[-1][len(tokens) - 1 - len(own) : len(tokens) - 1] = own & self._best(index)
        batch: Dict[str, Any] = {
            "id": torch.from_numpy(indices),
            "nsentences": len(indices),
            "ntokens": int(lengths.sum()),
            "net_input": {
                "src_tokens": torch.from_numpy(pad_rows(rows, lengths, self.form.pad)),
                "src_lengths": torch.from_numpy(lengths),
            },
            "target": torch.from_numpy(self._targets(indices)),
            "context_mask": torch.from_numpy(context_mask),
        }
        if not self.training:
            batch["start_mask"] = torch.from_numpy(np.stack(start_mask))
            batch["shift"] = torch.from_numpy(-self._shift(indices))
            batch["split"] = self.name
        return batch

    def _sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens <int64>[n] of a window, and which pieces <bool>[pieces] stand for characters of their own."""
        question, piece, last = (int(each[index]) for each in self.windows[:3])
        context = self.split.question_context[question]
        start = self.split.context_start[context]
        chosen = slice(start + piece, start + last)
        arrays, bos, eos = self.split.arrays, self.form.bos, self.form.eos
        parts = [
            *([bos], self.split.question(question)[: self.question_lengths[question]], [eos, eos]),
            *(arrays["context_tokens"][chosen], [eos]),
        ]
        own = arrays["context_begin"][chosen] < arrays["context_end"][chosen]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]), own

    def _best(self, index: int) -> np.ndarray:
        first, last = self.windows.first[self.windows.question[index] :][:2]
        if last - first == 1:
            return np.ones(int(self.windows.end[index] - self.windows.begin[index]), dtype=bool)
        return best_context(self.windows.begin[first:last], self.windows.end[first:last], int(index - first))

    def _shift(self, indices: np.ndarray) -> np.ndarray:
        """<int64>[B], the position of the context's first piece, which may lie before the window."""
        return self.question_lengths[self.windows.question[indices]] + SPECIAL_TOKENS - 1 - self.windows.begin[indices]

    def _targets(self, indices: np.ndarray) -> np.ndarray:
        answers = self.split.answers[self.windows.question[indices]].astype(np.int64)
        held = self._holds_answer[indices, None]
        absent = np.where(answers == NOT_LOCATED, NO_TARGET, 0)
        return np.where(held, answers + self._shift(indices)[:, None], absent)
