"""Uses of fairseq's private names, which another version of fairseq may change.

The other modules in this folder also replace private functions. A contract test checks that no other folder uses any.
"""

from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging.meters import MetersDict

DerivedMeter = MetersDict._DerivedMeter


class WatchedBatches(EpochBatchIterator):
    """fairseq's batches of an epoch, with a hook before they are ordered."""

    first_batch = 0  # the first batch of the epoch that this process reads

    def begin(self, offset: int) -> None:
        """Record the first batch to read in an epoch; called before ``ordered_batches``."""
        self.first_batch = offset

    def _get_iterator_for_epoch(
        self, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        self.begin(offset)
        return super()._get_iterator_for_epoch(epoch, shuffle, fix_batches_to_gpus, offset)
