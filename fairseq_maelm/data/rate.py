"""A masking rate that changes linearly over the updates of a run.

Data workers draw masks long before the update that they are for, and know neither its number nor the order of the
batches. So the update of each sequence is written down when an epoch's batches are put in order, before workers start.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.private import WatchedBatches


class RateOfUpdates(NamedTuple):
    """The masking rate of each batch of an epoch.

    Attributes:
        start: rate of a run's first update.
        end: rate once all updates are made.
        updates: of the whole run.
        made: <int32>[items] updates that the run has made before the one that each item is for.
    """

    start: float
    end: float
    updates: int
    made: np.ndarray

    def of_batch(self, indices: np.ndarray) -> float:
        """Return the rate of items <int64>[B] that make a batch."""
        share = min(int(self.made[indices[0]]) / self.updates, 1.0)
        return self.start + (self.end - self.start) * share


class RatedBatches(WatchedBatches):
    """fairseq's batches of an epoch, which tell their dataset by its ``rate`` which update each of them is for."""

    _start: float
    _end: float
    _trainer: Trainer
    _first_update = 0  # updates made before the first batch that this process reads
    _resumed_at: int | None = None

    @classmethod
    def follow(cls, batches: EpochBatchIterator, start: float, end: float, trainer: Trainer) -> "RatedBatches":
        """Turn fairseq's batches into these.

        Raises:
            ValueError: the run has no --max-update.
        """
        if not trainer.cfg.optimization.max_update:
            raise ValueError("--mask-prob-end needs --max-update, the updates over which the rate changes")
        # fairseq's task makes them by itself, and lets nobody choose their class.
        batches.__class__ = cls
        batches._start, batches._end, batches._trainer = start, end, trainer
        return batches

    def state_dict(self) -> dict[str, Any]:
        """As fairseq's, with the number of updates that the batches read so far are for."""
        return {**super().state_dict(), "updates": self._update_of(self.iterations_in_epoch, self.epoch)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As fairseq's."""
        self._resumed_at = state_dict.get("updates")
        super().load_state_dict(state_dict)

    def begin(self, offset: int) -> None:
        """As the base class; and find the update that the batch is for."""
        super().begin(offset)
        self._first_update = self._trainer.get_num_updates()
        # An update that is skipped for an overflow uses its batches up: the rest of the epoch then is ahead of the
        # trainer's number, and stays so when the run is resumed. After --reset-optimizer that number is 0.
        if offset and self._first_update and self._resumed_at is not None:
            self._first_update = self._resumed_at

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Sequence[int]]:
        """As fairseq's: the whole epoch's batches of this rank, in order."""
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
