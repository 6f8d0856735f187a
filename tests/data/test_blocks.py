"""Blocks equal fairseq's, except that lines longer than a block are cut, and lose no token."""

import pickle
from unittest import mock

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.data.token_block_utils_fast import _get_slice_indices_fast
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.data import blocks
from fairseq_maelm.data.blocks import BREAK_MODES, TokenBlocks, block_slices, split_files

BLOCK = 20
# A size of 1 is a blank line. No line is longer than a block. fairseq fails on a text of blank lines alone.
line_sizes = (
    st.lists(st.one_of(st.just(1), st.integers(2, BLOCK)), min_size=1, max_size=60)
    .map(np.array)
    .filter(lambda sizes: sizes.max() > 1)
)


@settings(max_examples=100)
@given(line_sizes, st.sampled_from(["none", "complete", "complete_doc", "eos"]))
def test_equals_fairseq(sizes, mode):
    theirs = _get_slice_indices_fast(sizes.astype(np.int64), mode, BLOCK, 1).astype(np.int64)
    theirs = theirs[theirs[:, 1] - theirs[:, 0] > 1]
    assert block_slices(sizes, mode, BLOCK).tolist() == theirs.tolist()


any_line_sizes = st.lists(st.one_of(st.just(1), st.integers(1, 90)), min_size=1, max_size=60).map(np.array)


def plain_blocks(sizes, mode):
    """Pack lines into blocks by a plain loop; a line longer than a block is cut."""
    blocks, block, first = [], [], 0

    def flush():
        blocks.append(list(block))
        block.clear()

    for size in sizes.tolist():
        line, first = list(range(first, first + size)), first + size
        if mode == "complete_doc" and size == 1:
            flush()
            continue
        if len(block) + len(line) > BLOCK:
            flush()
        while len(line) > BLOCK:
            blocks.append(line[:BLOCK])
            line = line[BLOCK:]
        block.extend(line)
        if mode == "eos":
            flush()
    flush()
    return [[block[0], block[-1] + 1] for block in blocks if len(block) > 1]


@settings(max_examples=100)
@given(any_line_sizes, st.sampled_from(["complete", "complete_doc", "eos"]), st.sampled_from([1, 3, 16]))
def test_equals_a_plain_loop(sizes, mode, many):
    """However many documents are taken together."""
    with mock.patch.object(blocks, "_MANY_SPANS", many):
        assert block_slices(sizes, mode, BLOCK).tolist() == plain_blocks(sizes, mode)


def write_split(folder):
    """Write two files, ``train`` and ``train1``, with lines of tokens from 10 on and blank lines between documents."""
    lines = [[10, 11, 2], [12, 13, 14, 2], [2], [15, 2]], [[16, 17, 2]]
    for name, content in zip(("train", "train1"), lines):
        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=np.uint16)
        for line in content:
            builder.add_item(torch.tensor(line))
        builder.finalize(str(folder / f"{name}.idx"))
    return folder


@pytest.fixture
def split(tmp_path):
    return write_split(tmp_path)


def test_reads_blocks(split):
    blocks = TokenBlocks(split_files(str(split), "train", combine=False), "complete_doc", 9, first_symbol=0)
    assert [blocks[i].tolist() for i in range(len(blocks))] == [[0, 10, 11, 2, 12, 13, 14, 2], [0, 15, 2]]
    assert blocks.sizes.tolist() == [8, 3]
    blocks.check_tokens(16)
    with pytest.raises(ValueError, match="holds the token id 15, but dict.txt has only 15 symbols"):
        blocks.check_tokens(15)
    assert blocks[0].dtype == np.int64


def test_combines_files_and_survives_pickling(split):
    blocks = TokenBlocks(split_files(str(split), "train", combine=True), "complete_doc", 9, first_symbol=0)
    copy = pickle.loads(pickle.dumps(blocks))
    assert [copy[i].tolist() for i in range(len(copy))][-1] == [0, 16, 17, 2]
    assert len(pickle.dumps(blocks)) < 4000


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_batch_is_read_as_its_blocks_are(two_files, rows):
    """Batches may contain blocks of several files in any order, also twice, and the last token of a file."""
    blocks = TokenBlocks(two_files, "eos", 5, first_symbol=0)
    content = [[0, 10, 11, 2], [0, 12, 13, 14, 2], [0, 15, 2], [0, 16, 17, 2]]
    tokens, lengths = blocks.read(np.array(rows), filler=99)
    assert lengths.tolist() == [len(content[row]) for row in rows]
    width = max(len(content[row]) for row in rows)
    assert tokens.tolist() == [content[row] + [99] * (width - len(content[row])) for row in rows]
    assert tokens.dtype == np.int64 and tokens.flags.writeable


@pytest.fixture(scope="module")
def two_files(tmp_path_factory):
    return split_files(str(write_split(tmp_path_factory.mktemp("split"))), "train", combine=True)


def test_missing_split(split):
    with pytest.raises(FileNotFoundError, match="maelm prepare corpus"):
        split_files(str(split), "valid", combine=False)


def test_empty_split(tmp_path):
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "train.bin"), dtype=np.uint16)
    builder.add_item(torch.tensor([2]))
    builder.finalize(str(tmp_path / "train.idx"))
    for mode in BREAK_MODES:
        with pytest.raises(ValueError, match="empty"):
            TokenBlocks([str(tmp_path / "train")], mode, 9, first_symbol=0)
