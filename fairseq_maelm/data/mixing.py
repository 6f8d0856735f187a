"""Domain text mixed with some general text in every epoch."""

import numpy as np

from fairseq_maelm.data.dataset import MaskedBlockDataset


def blocks_to_mix(domain: np.ndarray, general: np.ndarray, ratio: float) -> int:
    """Return the number of general blocks that makes general text a fraction ``ratio`` of an epoch's tokens.

    Args:
        domain: <int>[blocks] lengths of the domain blocks; every epoch uses all of them.
        general: <int>[blocks] lengths of the general blocks; an epoch uses each at most once.
        ratio: share of general text in an epoch's tokens, in [0, 1).
    """
    number = round(ratio / (1.0 - ratio) * int(domain.sum(dtype=np.int64)) / float(general.mean()))
    if number > len(general):
        raise ValueError(
            f"--general-ratio {ratio} needs {number:,} blocks of general text in every epoch, but there are "
            f"{len(general):,}: give more general text, or a smaller ratio"
        )
    return number


class MixedBlockDataset(MaskedBlockDataset):
    """A training split: each epoch has all domain blocks and the next few general blocks.

    The choice depends on the seed and the epoch alone, so that a resumed run sees the same data as an uninterrupted
    one.
    """

    domain_blocks: int
    general_blocks: int

    def mix(self, domain_blocks: int, ratio: float) -> "MixedBlockDataset":
        """Set the number of domain blocks, and the fraction of general tokens in an epoch; return self."""
        sizes = self.blocks.sizes
        self.domain_blocks = domain_blocks
        self.general_blocks = blocks_to_mix(sizes[:domain_blocks], sizes[domain_blocks:], ratio)
        return self

    def ordered_indices(self) -> np.ndarray:
        """Return the blocks of the epoch, <int64>[n], in the order in which they are batched."""
        # Every epoch takes the next general blocks of a random order, so that all are taken equally often.
        order = np.random.default_rng([self.seed, 0]).permutation(len(self) - self.domain_blocks)
        places = (self.epoch - 1) * self.general_blocks + np.arange(self.general_blocks)
        general = np.sort(order[places % len(order)]) + self.domain_blocks
        return self._ordered(np.concatenate([np.arange(self.domain_blocks), general]))
