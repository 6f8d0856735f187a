"""Uses of fairseq's private names, which another version of fairseq may change.

The other modules in this folder also replace private functions. A contract test checks that only this folder uses them.
"""

from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging.meters import MetersDict
from omegaconf import OmegaConf, open_dict

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


class WatchedBatches(EpochBatchIterator):
    """fairseq's batch iterator, with a hook that runs before the batches of an epoch are ordered."""

    first_batch = 0  # index of the first batch to read in the epoch; not 0 in a resumed run

    def begin(self, offset: int) -> None:
        """Store the index of an epoch's first batch to read; called before ``ordered_batches``."""
        self.first_batch = offset

    def _get_iterator_for_epoch(
        self, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        self.begin(offset)
        return super()._get_iterator_for_epoch(epoch, shuffle, fix_batches_to_gpus, offset)
