"""A text for training with a share of another text in every epoch, for adapting an encoder to a domain."""

import numpy as np

from fairseq_maelm.data.dataset import MaskedBlockDataset


def taken_in_turn(total: int, number: int, epoch: int, seed: int) -> np.ndarray:
    """Choose the items of an epoch, <int64>[number] in [0, total), so that over the epochs all are taken equally often.

    The items are put in a random order, of which every epoch, counted from 1, takes the next ``number``, none twice; at
    its end comes another order.
    """
    first = (epoch - 1) * number
    order = np.random.default_rng([seed, 0]).permutation(total)
    for turn in range(1, (first + max(number, 1) - 1) // total + 1):
        # An epoch that takes the last items of an order and the first of the next must not meet any of them twice.
        last = (turn * total) % number
        following = np.random.default_rng([seed, turn]).permutation(total)
        late = np.isin(following, order[total - last :])
        ahead = following[~late][: (number - last) % number]
        order, previous = np.concatenate([ahead, following[~np.isin(following, ahead)]]), order
        if first < turn * total:
            return np.concatenate([previous[first - (turn - 1) * total :], order])[:number]
    return order[first % total :][:number]


def blocks_to_mix(domain: np.ndarray, general: np.ndarray, ratio: float) -> int:
    """Return how many blocks of general text an epoch takes so that they hold the share ``ratio`` of its tokens.

    Args:
        domain, general: <int>[blocks] tokens of each block; an epoch takes all of the domain's.
        ratio: in [0, 1).

    Raises:
        ValueError: there is too little general text; no block comes twice in an epoch.
    """
    number = round(ratio / (1.0 - ratio) * int(domain.sum(dtype=np.int64)) / float(general.mean()))
    if number > len(general):
        raise ValueError(
            f"a share of {ratio} general text needs {number:,} blocks in every epoch, and there are {len(general):,}: "
            "give more general text, or a smaller --general-ratio"
        )
    return number


class MixedBlockDataset(MaskedBlockDataset):
    """A training split of which an epoch sees all blocks of the domain and some of the general ones, the last blocks.

    Which of them is decided by the seed and the epoch alone, so that a resumed run sees what an uninterrupted one does.
    """

    domain_blocks: int
    general_blocks: int

    def mix(self, domain_blocks: int, ratio: float) -> "MixedBlockDataset":
        """Set how many blocks are the domain's, and the general text's share of an epoch's tokens; return itself."""
        sizes = self.blocks.sizes
        self.domain_blocks = domain_blocks
        self.general_blocks = blocks_to_mix(sizes[:domain_blocks], sizes[domain_blocks:], ratio)
        return self

    def ordered_indices(self) -> np.ndarray:
        """Return <int64>[blocks of the epoch], near-equal lengths together, in a random order."""
        general = taken_in_turn(len(self) - self.domain_blocks, self.general_blocks, self.epoch, self.seed)
        chosen = np.concatenate([np.arange(self.domain_blocks), np.sort(general) + self.domain_blocks])
        return self._ordered(chosen)
