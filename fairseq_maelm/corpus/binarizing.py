"""Binarizing: part files are joined into the .bin and .idx of fairseq's memory-mapped dataset."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fairseq_maelm.corpus.encoding import COUNTS, PartArrays
from fairseq_maelm.files import atomic_file

# The layout of fairseq.data.indexed_dataset.MMapIndexedDataset: magic, version, code of the integer type, number of
# items, then all lengths <int32>, then all byte offsets <int64>.
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.uint32): 9}
_HEADER = struct.Struct("<9sQBQ")

_BLOCK_ITEMS = 2**20


def write_dataset(
    prefix: Path,
    parts: Iterable[PartArrays],
    dtype: type[np.uint16] | type[np.uint32],
) -> dict[str, int]:
    """Writes ``prefix``.bin and ``prefix``.idx from the parts of one target and returns its counts.

    A document's first item is a lone </s>, its blank line; the one of the first document is left out, because a blank
    line stands between documents. Memory holds one part.

    Args:
        prefix: the path without suffix.
        parts: ids <dtype>[tokens], lengths <int32>[items] and counts <int64>[len(COUNTS)] of every part in order.
        dtype: the integer type of the ids.
    """
    counts = np.zeros(len(COUNTS), dtype=np.int64)
    items = 0
    with atomic_file(prefix.with_suffix(".bin")) as data, atomic_file(prefix.with_suffix(".idx")) as index:
        index.write(bytes(_HEADER.size))
        for number, (ids, lengths, part_counts) in enumerate(parts):
            if number == 0:
                ids, lengths = ids[1:], lengths[1:]
                counts[COUNTS.index("tokens")] -= 1
            data.write(ids.tobytes())
            index.write(lengths.astype("<i4").tobytes())
            items += len(lengths)
            counts += part_counts
        _write_offsets(index, items, np.dtype(dtype).itemsize)
        index.seek(0)
        index.write(_HEADER.pack(_MAGIC, _VERSION, _DTYPE_CODES[np.dtype(dtype)], items))
    return dict(zip(COUNTS, counts.tolist(), strict=True))


def _write_offsets(index: BinaryIO, items: int, item_bytes: int) -> None:
    """Appends the byte offset of every item, from the lengths that already stand in the file."""
    index.flush()
    offset = 0
    with open(index.name, "rb") as written:
        written.seek(_HEADER.size)
        for begin in range(0, items, _BLOCK_ITEMS):
            count = min(_BLOCK_ITEMS, items - begin)
            lengths = np.frombuffer(written.read(4 * count), dtype="<i4").astype(np.int64)
            ends = offset + np.cumsum(lengths * item_bytes)
            index.write((ends - lengths * item_bytes).astype("<i8").tobytes())
            offset = int(ends[-1])
