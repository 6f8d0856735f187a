"""Domain text mixed with some general text in every epoch."""

from collections.abc import Sequence

import numpy as np

from fairseq_maelm.data.dataset import MaskedBlockDataset


def blocks_to_mix(domain_tokens: int, general: np.ndarray, ratio: float) -> int:
    """Return the number of general blocks that makes general text a fraction ``ratio`` of an epoch's tokens.

    Args:
        domain_tokens: number of tokens in the domain blocks; every epoch uses all of them.
        general: <int>[blocks] lengths of the general blocks; an epoch uses each at most once.
        ratio: share of general text in an epoch's tokens, in [0, 1).
    """
    number = round(ratio / (1.0 - ratio) * domain_tokens / float(general.mean()))
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
    general_blocks: Sequence[int]  # numbers of general blocks in the first epochs, after which they are repeated

    def mix(self, domain_blocks: int, domain_tokens: Sequence[int], ratio: float) -> "MixedBlockDataset":
        """Set what the epochs are made of; return self.

        Args:
            domain_blocks: number of domain blocks, which come first.
            domain_tokens: number of domain tokens in each of the first epochs, one for each shard; with fewer epochs
                than shards, up to the current epoch.
            ratio: fraction of general tokens in an epoch.
        """
        general = self.blocks.sizes[domain_blocks:]
        self.domain_blocks = domain_blocks
        self.general_blocks = [blocks_to_mix(tokens, general, ratio) for tokens in domain_tokens]
        return self

    def ordered_indices(self) -> np.ndarray:
        """Return the blocks of the epoch, <int64>[n], in the order in which they are batched."""
        # Every epoch takes the next general blocks of a random order, so that all are taken equally often.
        order = np.random.default_rng([self.seed, 0]).permutation(len(self) - self.domain_blocks)
        cycles, epoch = divmod(self.epoch - 1, len(self.general_blocks))
        taken = cycles * sum(self.general_blocks) + sum(self.general_blocks[:epoch])
        numbers = taken + np.arange(self.general_blocks[epoch])
        general = np.sort(order[numbers % len(order)]) + self.domain_blocks
        return self._ordered(np.concatenate([np.arange(self.domain_blocks), general]))
