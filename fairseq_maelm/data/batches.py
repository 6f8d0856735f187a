"""The base class of datasets: items are indices, and each batch is read and collated as a whole."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.batch import round_up
from fairseq_maelm.data.length_buckets import WIDEST, order_by_length


class BatchDataset(FairseqDataset):
    """A dataset in which an item is one or several sequences; subclasses define ``collate``, which makes a batch.

    Random numbers depend on the seed and the epoch alone, so that a resumed run sees the same data as an uninterrupted
    one.

    Args:
        sizes: <int>[items] length of each item's longest sequence, in tokens.
        order: order of the items in an epoch: "buckets" of similar lengths, in random order within a bucket; or
            "shortest" first, the same in every epoch.
        seed: seed of the order.
        token_counts: <int>[items] number of tokens per item for ``--max-tokens``; by default ``sizes``.
        fixed_epoch: if given, all epochs use the random numbers of this epoch.
        used: <int64>[n] indices of the items in an epoch; by default all items.
    """

    # Parts of the message about an item that no batch can hold.
    largest_item = "the longest sequence"
    remedy = "a smaller --tokens-per-sample"
    # The largest relative difference between lengths in a bucket.
    widest_bucket = WIDEST
    # Whether batches have few different shapes, for a little more padding; the task decides.
    few_shapes = False

    # Makes a dict with ``ntokens``, ``net_input`` etc. from item indices <int64>[B].
    collate: Callable[[np.ndarray], dict[str, Any]]

    def __init__(
        self,
        sizes: np.ndarray,
        order: str,
        seed: int = 0,
        token_counts: np.ndarray | None = None,
        fixed_epoch: int | None = None,
        used: np.ndarray | None = None,
    ) -> None:
        self.sizes, self.order, self.seed, self.fixed_epoch = sizes, order, seed, fixed_epoch
        self.token_counts = sizes if token_counts is None else token_counts
        self.used, self.longest = used, int(sizes.max(initial=0))
        self.epoch = 1 if fixed_epoch is None else fixed_epoch

    def set_epoch(self, epoch: int) -> None:
        """Switch to the random numbers of an epoch; called by fairseq before it makes the epoch's batches."""
        self.epoch = epoch if self.fixed_epoch is None else self.fixed_epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: fairseq makes new batches, in new worker processes, for every epoch."""
        # With reused batches, resumed runs would differ, and workers, which copy this object, would miss ``set_epoch``.
        return False

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> int:
        """Return the index itself; the collater reads whole batches."""
        return int(index)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the indices themselves; called by torch's data loader for a batch."""
        return indices

    def padded(self, sizes: np.ndarray) -> np.ndarray:
        """Return the lengths to which sequences of lengths <int>[...] are padded if they are the longest of a batch."""
        return np.minimum(round_up(sizes), self.longest) if self.few_shapes else sizes

    def width(self, indices: np.ndarray) -> int:
        """Return the length to which the sequences of a batch with item indices <int64>[B] are padded."""
        return int(self.padded(self.sizes[indices].max()))

    def num_tokens(self, index: int) -> int:
        """Return the number of tokens in an item, as counted for ``--max-tokens``."""
        return int(self.token_counts[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return ``num_tokens`` of several items, <int>[indices]."""
        return self.token_counts[indices]

    def size(self, index: int) -> int:
        """Return the length of an item's longest sequence, which ``--max-positions`` limits."""
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """Return the items of the epoch, <int64>[n], in the order in which they are batched."""
        return self._ordered(np.arange(len(self)) if self.used is None else self.used)

    def _ordered(self, indices: np.ndarray) -> np.ndarray:
        """Sort an epoch's items <int64>[n] in the epoch's order."""
        if self.order == "buckets":
            return indices[order_by_length(self.sizes[indices], self._draws(indices), self.widest_bucket)]
        return indices[np.argsort(self.sizes[indices], kind="stable")]

    def _draws(self, indices: np.ndarray) -> np.ndarray:
        """Return random keys <float64>[n] in [0, 1) that order the items within each bucket."""
        return np.random.default_rng([self.seed, self.epoch]).random(len(indices))

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Split ordered indices into batches; called by fairseq."""
        most = int(self.token_counts[indices].max(initial=0))
        if max_tokens is not None and most > max_tokens:
            raise ValueError(
                f"--max-tokens {max_tokens} is less than the {most} tokens of {self.largest_item}, which fits into no "
                f"batch: give at least --max-tokens {most}, or {self.remedy}"
            )
        return list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Make a batch from item indices <int>[B]: ``id`` <int64>[B], ``nsentences`` and the result of ``collate``.

        Without items, return an empty batch; fairseq passes no items on ranks that have fewer batches than others.
        """
        if not len(samples):
            return {}
        indices = np.array(samples, dtype=np.int64)
        return {"id": torch.from_numpy(indices), "nsentences": len(indices), **self.collate(indices)}
