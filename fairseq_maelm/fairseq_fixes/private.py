"""What this package builds upon in fairseq that fairseq calls private: with another fairseq, this is the place to look.

The other modules here replace private functions too. A contract test holds that none is used elsewhere.
"""

from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging.meters import MetersDict

DerivedMeter = MetersDict._DerivedMeter


class WatchedBatches(EpochBatchIterator):
    """fairseq's batches of an epoch, with a word before they are put in order.

    Attributes:
        first_batch: the first batch of the epoch that this process reads.
    """

    first_batch = 0

    def begin(self, offset: int) -> None:
        """Take note that an epoch will be read from a batch on; called before ``ordered_batches``."""
        self.first_batch = offset

    def _get_iterator_for_epoch(
        self, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        self.begin(offset)
        return super()._get_iterator_for_epoch(epoch, shuffle, fix_batches_to_gpus, offset)
