"""A text for training with a share of another text in every epoch, for adapting an encoder to a domain."""

import numpy as np

from fairseq_maelm.data.dataset import MaskedBlockDataset


def taken_in_turn(total: int, number: int, epoch: int, seed: int) -> np.ndarray:
    """Choose items of an epoch so that over the epochs all are taken equally often.

    The items are put in a random order, of which every epoch takes the next ones; at its end comes another order.

    Args:
        total: how many items there are.
        number: how many an epoch takes, at most ``total``.
        epoch: from 1.
        seed: of the orders.

    Returns:
        <int64>[number] items in [0, total), none twice.
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
    """How many blocks of general text an epoch takes so that they hold a share of its tokens.

    Args:
        domain: <int>[blocks] tokens of each block of the domain, all of which an epoch takes.
        general: <int>[blocks] tokens of each block of the general text.
        ratio: the share of the epoch's tokens that are to be general, in [0, 1).

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
    """A training split of which an epoch sees all blocks of the domain and some of the general ones.

    Arguments are those of ``MaskedBlockDataset``; the last blocks are the general ones. Which of them an epoch sees is
    decided by the seed and the epoch alone, so that a resumed run sees what an uninterrupted one does. Masks are drawn
    as ever, by seed, epoch and block.
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
        """<int64>[blocks of the epoch], near-equal lengths together, in a random order; see ``order_by_length``."""
        general = taken_in_turn(len(self) - self.domain_blocks, self.general_blocks, self.epoch, self.seed)
        chosen = np.concatenate([np.arange(self.domain_blocks), np.sort(general) + self.domain_blocks])
        return self._ordered(chosen)
