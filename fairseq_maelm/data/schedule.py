"""What changes over the updates of a run: the masking rate, in equal steps, and the length of sequences.

Data workers draw masks ahead of the update and know neither its number nor the order of the batches. Therefore the
update number of each sequence is stored when the epoch's batches are ordered, before the workers start.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.trainer import Trainer

from fairseq_maelm.fairseq_fixes.private import WatchedBatches

# Number of rates in a run. Each makes batches of another shape, for which a CPU or a compiler prepares itself anew.
_RATES = 8


class Schedule(NamedTuple):
    """The masking rates in a run, and until when its sequences are short."""

    mask_prob: float  # rate in the first eighth of the run
    mask_prob_end: float  # rate in the last eighth
    half_length_until: float = 0.0  # share of the updates whose blocks are cut in half, in [0, 1)

    def mask_prob_at(self, made: int, updates: int) -> float:
        """Return the masking rate after ``made`` of a run's ``updates`` updates."""
        step = min(made * _RATES // updates, _RATES - 1)
        return self.mask_prob + (self.mask_prob_end - self.mask_prob) * step / (_RATES - 1)

    def is_short_at(self, made: int, updates: int) -> bool:
        """Return whether blocks are cut in half after ``made`` of a run's ``updates`` updates."""
        return made < self.half_length_until * updates


class ScheduledEpoch(NamedTuple):
    """The schedule of an epoch's batches."""

    schedule: Schedule
    updates: int  # number of updates of the whole run
    made: np.ndarray  # <int32>[items] number of completed updates when each item is used

    def mask_prob(self, indices: np.ndarray) -> float:
        """Return the masking rate of a batch with item indices <int64>[B]."""
        return self.schedule.mask_prob_at(int(self.made[indices[0]]), self.updates)

    def halves_blocks(self, indices: np.ndarray) -> bool:
        """Return whether the blocks of a batch with item indices <int64>[B] are cut in half."""
        return self.schedule.is_short_at(int(self.made[indices[0]]), self.updates)


class ScheduledBatches(WatchedBatches):
    """fairseq's batch iterator, which also sets the dataset's ``scheduled``, the schedule of an epoch's batches."""

    _schedule: Schedule
    _trainer: Trainer
    _first_update = 0  # number of updates before the first batch that this process reads
    _resumed_at: int | None = None

    @classmethod
    def follow(cls, batches: EpochBatchIterator, schedule: Schedule, trainer: Trainer) -> "ScheduledBatches":
        """Convert fairseq's batch iterator to this class, in place."""
        if not trainer.cfg.optimization.max_update:
            raise ValueError("--mask-prob-end and --half-length-until need --max-update, the end of the run")
        # fairseq's task has no option for the class of its batches.
        batches.__class__ = cls
        batches._schedule, batches._trainer = schedule, trainer
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return fairseq's state plus ``updates``, the update count after the batches read so far."""
        return {**super().state_dict(), "updates": self._update_of(self.iterations_in_epoch, self.epoch)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from ``state_dict`` or from fairseq's own batch iterator."""
        self._resumed_at = state_dict.get("updates")
        super().load_state_dict(state_dict)

    def begin(self, offset: int) -> None:
        """Find the first batch's update number when an epoch begins or a run resumes."""
        super().begin(offset)
        self._first_update = self._trainer.get_num_updates()
        # An update skipped after an overflow still uses up its batches, so the epoch's batches run ahead of the
        # trainer's update count, also in a resumed run. After --reset-optimizer the trainer's count is 0.
        if offset and self._first_update and self._resumed_at is not None:
            self._first_update = self._resumed_at

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Sequence[int]]:
        """Return this rank's batches of the epoch in order, as fairseq does, and set the dataset's ``scheduled``."""
        batches: list[Sequence[int]] = super().ordered_batches(epoch, fix_batches_to_gpus, shuffle)
        updates_of_items = np.zeros(len(self.dataset), dtype=np.int32)
        for number, batch in enumerate(batches[self.first_batch :], self.first_batch):
            updates_of_items[batch] = self._update_of(number, epoch)
        updates = self._trainer.cfg.optimization.max_update
        self.dataset.scheduled = ScheduledEpoch(self._schedule, updates, updates_of_items)
        return batches

    def _update_of(self, batch_number: int, epoch: int) -> int:
        update_freq = self._trainer.cfg.optimization.update_freq
        batches_of_update = update_freq[min(epoch, len(update_freq)) - 1]
        return int(self._first_update + (batch_number - self.first_batch) // batches_of_update)
