"""The base class of datasets: items are indices, and each batch is read and collated as a whole.

Sequences are batched by buckets of similar lengths, in random order within a bucket. Measured padding for 17 million
tokens of Wikipedia ("complete_doc" blocks of up to 512 tokens, batches of 16,384 tokens): 0.13 % with fully sorted
lengths, 0.32 % with these buckets, 0.71 % with buckets of 1,024 sequences. So packing several documents into a row
could save little more, and attention would have to separate them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from fairseq_maelm.batch import round_up

# ENOUGH: a bucket is closed when it holds this many sequences; they form several batches, new ones in every epoch.
# WIDEST: the largest relative difference of lengths in a bucket; average padding is at most half of that.
_ENOUGH_SEQUENCES = 256
WIDEST = 0.02


class BatchDataset(FairseqDataset):
    """A dataset in which an item is one or several sequences; subclasses define ``collate``, which makes a batch.

    ``sizes`` <int>[items] are the tokens of each item's longest sequence, and ``token_counts`` <int>[items] (by default
    the same) those that ``--max-tokens`` counts. The ``order`` of an epoch is "buckets" of similar lengths, in random
    order within a bucket; or "shortest" first, the same in every epoch. ``used`` <int64>[n] are the indices of the
    items in an epoch, by default all.

    Random numbers depend on the seed and the epoch alone, so that a resumed run sees the same data as an uninterrupted
    one. With ``fixed_epoch``, all epochs use those of that one.
    """

    # Parts of the message about an item that no batch can hold.
    largest_item = "the longest sequence"
    remedy = "a smaller --tokens-per-sample"
    widest_bucket = WIDEST  # largest relative difference between lengths in a bucket
    few_shapes = False  # whether batches have few different shapes, for a little more padding; the task decides

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
        if not len(indices):
            return []
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        # fairseq silently drops the end of the last batch if its size is not a multiple, even in validation.
        remainder = indices[sum(map(len, batches)) :]
        return [*batches, remainder] if len(remainder) else batches

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Make a batch from item indices <int>[B]: ``id`` <int64>[B], ``nsentences`` and the result of ``collate``.

        Without items, return an empty batch; fairseq passes no items on ranks that have fewer batches than others.
        """
        if not len(samples):
            return {}
        indices = np.array(samples, dtype=np.int64)
        return {"id": torch.from_numpy(indices), "nsentences": len(indices), **self.collate(indices)}


def length_buckets(sizes: np.ndarray, enough: int = _ENOUGH_SEQUENCES, widest: float = WIDEST) -> np.ndarray:
    """Group neighboring lengths <int>[sequences] into buckets; return the bucket <uint16>[longest + 1] of each length.

    Buckets are filled from the longest length down, so that full blocks form a bucket without padding. A bucket is
    closed when it holds ``enough`` sequences, or if the next length < (1 - ``widest``) * longest length in the bucket.
    """
    sequences = np.bincount(sizes).tolist()
    longest, held, bucket = len(sequences) - 1, 0, 0
    buckets = np.empty(len(sequences), dtype=np.uint16)
    for length in range(len(sequences) - 1, -1, -1):
        if held >= enough or length < (1.0 - widest) * longest:
            longest, held, bucket = length, 0, bucket + 1
        held += sequences[length]
        buckets[length] = bucket
    return np.uint16(bucket) - buckets


def order_by_length(sizes: np.ndarray, draws: np.ndarray, widest: float = WIDEST) -> np.ndarray:
    """Sort sequences by bucket, and within a bucket by ``draws`` <float64>[sequences] in [0, 1)."""
    # numpy sorts 16-bit integers stably by radix sort: in linear time, and in the same order on every machine.
    order = np.argsort((draws * (1 << 16)).astype(np.uint16), kind="stable")
    return order[np.argsort(length_buckets(sizes, widest=widest)[sizes[order]], kind="stable")]


def padding_share(batches: Sequence[np.ndarray], sizes: np.ndarray) -> float:
    """Return the fraction of padding, in [0, 1), if each batch is padded to its longest full sequence.

    ``batches`` are nonempty index arrays <int64>[B] into ``sizes``, the lengths of the sequences.
    """
    counts = np.array([len(batch) for batch in batches], dtype=np.int64)
    lengths = sizes[np.concatenate(list(batches))]
    longest = np.maximum.reduceat(lengths, np.cumsum(counts) - counts).astype(np.int64)
    return 1.0 - int(lengths.sum(dtype=np.int64)) / int((counts * longest).sum())
