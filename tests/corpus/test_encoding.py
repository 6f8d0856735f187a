"""Binarized files: byte for byte what fairseq's own builder writes, and readable by fairseq."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_maelm.corpus import encoding
from fairseq_maelm.corpus.encoding import COUNTS, write_dataset


def parts_of(items: list[list[int]], dtype: Any, items_per_part: int) -> list[Any]:
    parts = []
    for begin in range(0, len(items), items_per_part):
        some = items[begin : begin + items_per_part]
        counts = np.zeros(len(COUNTS), dtype=np.int64)
        counts[COUNTS.index("tokens")] = sum(map(len, some))
        parts.append((np.array(sum(some, []), dtype=dtype), np.array([len(i) for i in some], dtype=np.int32), counts))
    return parts


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("items_per_part", [1, 7, 1000])
def test_equal_to_fairseqs_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, items_per_part: int
) -> None:
    # Small enough that the offsets are written in many blocks.
    monkeypatch.setattr(encoding, "_BLOCK_ITEMS", 8)
    generator = np.random.default_rng(0)
    high = np.iinfo(dtype).max if dtype == np.uint16 else 2**31 - 1
    items = [[2], *(generator.integers(0, high, size=size).tolist() for size in generator.integers(1, 30, size=100))]
    counts = write_dataset(tmp_path / "ours", parts_of(items, dtype, items_per_part), dtype)

    builder = MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for item in items[1:]:
        builder.add_item(torch.tensor(item))
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    assert [item.tolist() for item in MMapIndexedDataset(str(tmp_path / "ours"))] == items[1:]
    assert counts["tokens"] == sum(map(len, items[1:]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.bin", "ours.idx", "theirs.bin", "theirs.idx"]
