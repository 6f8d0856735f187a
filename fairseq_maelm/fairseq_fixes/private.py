"""Uses of fairseq's private names, which another version of fairseq may change.

The other modules in this folder also replace private functions. A contract test checks that only this folder uses them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging.meters import MetersDict
from fairseq.trainer import Trainer
from omegaconf import OmegaConf, open_dict

from fairseq_maelm.data.schedule import Schedule, ScheduledEpoch

DerivedMeter = MetersDict._DerivedMeter


def remember(cfg: Any, **options: Any) -> None:
    """Set options of a task's configuration, also in the configuration that fairseq stores in checkpoints.

    Setting them only in ``cfg`` is not enough, since a task gets a copy. Old values are stored in the option ``given``.
    """
    for name, value in options.items():
        setattr(cfg, name, value)
    parent = cfg._get_parent() if OmegaConf.is_config(cfg) else None
    stored = None if parent is None else parent.get("task")
    if stored is not None:
        with open_dict(stored):
            given = {name: stored.get(name) for name in options}
            stored.update(options)
            stored.given = given


def recorded_updates(trainer: Any) -> int:
    """Return the number of updates in the history of a loaded checkpoint, which it has also without optimizer state."""
    return int(trainer._optim_history[-1]["num_updates"])


def hours_before(trainer: Any) -> float:
    """Return the hours of training that a loaded checkpoint has recorded, the same on all ranks."""
    return float(trainer._previous_training_time) / 3600


class ScheduledBatches(EpochBatchIterator):
    """fairseq's batch iterator, which also sets the dataset's ``scheduled``, the schedule of an epoch's batches."""

    _schedule: Schedule
    _trainer: Trainer
    _first_update = 0  # number of updates before the first batch that this process reads
    _first_batch = 0  # index of the first batch to read in the epoch; not 0 in a resumed run
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

    def _get_iterator_for_epoch(
        self, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        """Find the number of the first batch and of its update, before the epoch's batches are ordered."""
        self._first_batch = offset
        self._first_update = self._trainer.get_num_updates()
        # An update skipped after an overflow still uses up its batches, so the epoch's batches run ahead of the
        # trainer's update count, also in a resumed run. After --reset-optimizer the trainer's count is 0.
        if offset and self._first_update and self._resumed_at is not None:
            self._first_update = self._resumed_at
        return super()._get_iterator_for_epoch(epoch, shuffle, fix_batches_to_gpus, offset)

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Sequence[int]]:
        """Return this rank's batches of the epoch in order, as fairseq does, and set the dataset's ``scheduled``."""
        batches: list[Sequence[int]] = super().ordered_batches(epoch, fix_batches_to_gpus, shuffle)
        updates_of_items = np.zeros(len(self.dataset), dtype=np.int32)
        for number, batch in enumerate(batches[self._first_batch :], self._first_batch):
            updates_of_items[batch] = self._update_of(number, epoch)
        updates = self._trainer.cfg.optimization.max_update
        self.dataset.scheduled = ScheduledEpoch(self._schedule, updates, updates_of_items)
        return batches

    def _update_of(self, batch_number: int, epoch: int) -> int:
        update_freq = self._trainer.cfg.optimization.update_freq
        batches_of_update = update_freq[min(epoch, len(update_freq)) - 1]
        return int(self._first_update + (batch_number - self._first_batch) // batches_of_update)
