"""Assignment of documents to the validation split and to training shards, by a hash of the document's number."""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.data.random_bits import GOLDEN_GAMMA, mix

_BLOCK = 2**20


def random_keys(first: int, count: int, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return pseudo-random keys <uint64>[count] for the numbers ``first`` to ``first + count - 1``.

    key(n) = mix((n + 1) * gamma + hash(seed, purpose)), as in splitmix64 (Steele et al., 2014). Keys are uniform over
    all 64-bit values, and distinct for distinct numbers because splitmix64 is a bijection.
    """
    start = int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "little")
    return mix(np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN_GAMMA + np.uint64(start))


class Split(NamedTuple):
    """Maps each document to a training shard or to validation."""

    seed: int
    shards: int  # number of shards of the training split
    last_valid_key: int | None  # documents with keys up to this one are held out; None holds out none

    def targets(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the targets <int64>[count] of documents: a training shard's number, or ``shards`` for validation."""
        targets = (random_keys(first, count, self.seed, "shard") % np.uint64(self.shards)).astype(np.int64)
        if self.last_valid_key is not None:
            targets[random_keys(first, count, self.seed, "valid") <= np.uint64(self.last_valid_key)] = self.shards
        return targets

    def targets_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the targets <int64>[P] of P paragraphs from their ascending document numbers <int64>[P]."""
        first, last = int(documents[0]), int(documents[-1])
        return self.targets(first, last - first + 1)[documents - first]

    def has_empty_shard(self, documents: int) -> bool:
        """Return whether a training shard gets none of the corpus's documents."""
        filled = np.zeros(self.shards + 1, dtype=np.int64)
        for first in range(0, documents, _BLOCK):
            filled += np.bincount(self.targets(first, min(_BLOCK, documents - first)), minlength=self.shards + 1)
        return not filled[: self.shards].all()


def draw_split(documents: int, valid_documents: int, shards: int, seed: int) -> Split:
    """Hold out exactly ``valid_documents`` (0 ... documents) random documents: those with the smallest keys.

    Memory grows with the number of held-out documents only.
    """
    if valid_documents == 0:
        return Split(seed, shards, None)
    smallest = np.empty(0, dtype=np.uint64)
    for first in range(0, documents, _BLOCK):
        keys = random_keys(first, min(_BLOCK, documents - first), seed, "valid")
        smallest = np.concatenate([smallest, keys])
        if len(smallest) > valid_documents:
            smallest = np.partition(smallest, valid_documents - 1)[:valid_documents]
    return Split(seed, shards, int(smallest.max()))
