"""A masking rate that changes linearly over the updates of a run.

Data workers draw masks before the update that uses them, and know neither its number nor the order of the batches. So
the update of each sequence is recorded when the batches of an epoch are ordered, before the workers start.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.private import WatchedBatches


class RateOfUpdates(NamedTuple):
    """The masking rate for each batch in an epoch."""

    start: float  # rate at the first update of the run
    end: float  # rate after the last update
    updates: int  # number of updates of the whole run
    made: np.ndarray  # <int32>[items] number of updates before the one that uses each item

    def of_batch(self, indices: np.ndarray) -> float:
        """Return the rate of a batch of items <int64>[B]."""
        share = min(int(self.made[indices[0]]) / self.updates, 1.0)
        return self.start + (self.end - self.start) * share


class RatedBatches(WatchedBatches):
    """fairseq's batches, which set their dataset's ``rate`` to the masking rate before each batch."""

    _start: float
    _end: float
    _trainer: Trainer
    _first_update = 0  # number of updates before the first batch that this process reads
    _resumed_at: int | None = None

    @classmethod
    def follow(cls, batches: EpochBatchIterator, start: float, end: float, trainer: Trainer) -> "RatedBatches":
        """Turn fairseq's batches into an object of this class."""
        if not trainer.cfg.optimization.max_update:
            raise ValueError("--mask-prob-end needs --max-update, the number of updates over which the rate changes")
        # fairseq's task has no option for the class of its batches.
        batches.__class__ = cls
        batches._start, batches._end, batches._trainer = start, end, trainer
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return fairseq's state, with the number of updates to which the batches read so far belong."""
        return {**super().state_dict(), "updates": self._update_of(self.iterations_in_epoch, self.epoch)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of ``state_dict``, or of fairseq's own batches."""
        self._resumed_at = state_dict.get("updates")
        super().load_state_dict(state_dict)

    def begin(self, offset: int) -> None:
        """Find the first batch's update number when an epoch begins or a run resumes."""
        super().begin(offset)
        self._first_update = self._trainer.get_num_updates()
        # An update that is skipped after an overflow still uses its batches, so the rest of the epoch is ahead of the
        # trainer's count, also in a resumed run. After --reset-optimizer that count is 0.
        if offset and self._first_update and self._resumed_at is not None:
            self._first_update = self._resumed_at

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Sequence[int]]:
        """Return this rank's batches of the whole epoch in order, as fairseq does, and set the masking rate."""
        batches: list[Sequence[int]] = super().ordered_batches(epoch, fix_batches_to_gpus, shuffle)
        made = np.zeros(len(self.dataset), dtype=np.int32)
        for place, batch in enumerate(batches[self.first_batch :], self.first_batch):
            made[batch] = self._update_of(place, epoch)
        updates = self._trainer.cfg.optimization.max_update
        self.dataset.rate = RateOfUpdates(self._start, self._end, updates, made)
        return batches

    def _update_of(self, place: int, epoch: int) -> int:
        update_freq = self._trainer.cfg.optimization.update_freq
        batches_of_update = update_freq[min(epoch, len(update_freq)) - 1]
        return int(self._first_update + (place - self.first_batch) // batches_of_update)
