"""Blocks of tokens from binarized text, as fairseq's break modes define them.

fairseq's memory-mapped format stores the items of a split one after another, so a block is a slice of the file. A line
longer than a block is cut into several blocks; fairseq would skip the line or stop.
"""

import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fairseq_maelm.data.token_files import check_tokens, read_index

logger = logging.getLogger(__name__)

BREAK_MODES = ("none", "complete", "complete_doc", "eos")

# The length in tokens of a blank line, which separates documents: fairseq-preprocess writes only </s>.
_BLANK_LINE = 1
# With fewer spans, a step over all of them costs more than a Python loop for each.
_MANY_SPANS = 16


def block_slices(line_sizes: np.ndarray, break_mode: str, block_size: int) -> np.ndarray:
    """Divide lines of lengths <int>[lines], including </s>, into blocks of at most ``block_size`` tokens.

    Mode "none" cuts after every ``block_size`` tokens, "complete" packs whole lines, "complete_doc" packs whole lines
    of one document without the blank lines between documents, and "eos" makes one block per line.

    Return the start and stop (exclusive) of each block in tokens, <int64>[blocks, 2]. Blocks of only </s> are left out.
    """
    ends = np.cumsum(line_sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        slices = np.empty((0, 2), dtype=np.int64)
    elif break_mode == "none":
        starts = np.arange(0, total, block_size, dtype=np.int64)
        slices = np.stack([starts, np.minimum(starts + block_size, total)], axis=1)
    elif break_mode == "eos":
        slices = _greedy(ends, np.stack([ends - line_sizes, ends], axis=1), block_size)
    elif break_mode == "complete":
        slices = _greedy(ends, np.array([[0, total]], dtype=np.int64), block_size)
    else:
        blank = line_sizes == _BLANK_LINE
        starts, stops = np.append(0, ends[blank]), np.append(ends[blank] - _BLANK_LINE, total)
        slices = _greedy(ends, np.stack([starts, stops], axis=1)[starts < stops], block_size)
    return slices[slices[:, 1] - slices[:, 0] > 1]


def _greedy(ends: np.ndarray, spans: np.ndarray, block_size: int) -> np.ndarray:
    """Pack as many whole lines as fit into each block, separately for each span; split lines longer than a block."""
    fits = spans[:, 1] - spans[:, 0] <= block_size
    if fits.all():
        return spans
    slices, (starts, stops) = [spans[fits]], spans[~fits].T
    # One block of every span at a time: documents are many and short. The rest of the few long ones follows in a loop.
    while len(starts) >= _MANY_SPANS:
        limits = np.minimum(starts + block_size, stops)
        lines = np.searchsorted(ends, limits, side="right")
        block_stops = ends[lines - 1]
        # Otherwise no line ends in the block.
        block_stops = np.where((lines > 0) & (block_stops > starts), block_stops, limits)
        slices.append(np.stack([starts, block_stops], axis=1))
        goes_on = block_stops < stops
        starts, stops = block_stops[goes_on], stops[goes_on]
    slices += [_greedy_in_span(ends, start, stop, block_size) for start, stop in zip(starts.tolist(), stops.tolist())]
    blocks = np.concatenate(slices)
    return blocks[np.argsort(blocks[:, 0], kind="stable")]


def _greedy_in_span(ends: np.ndarray, start: int, stop: int, block_size: int) -> np.ndarray:
    # An array of 64-bit integers: for a long text, a list of Python integers would take gigabytes.
    line_ends, bounds, line = ends.data, array("q", [start]), int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        # A line has at least one token, so a block holds at most ``block_size`` lines.
        limit = min(start + block_size, stop)
        after = bisect_right(line_ends, limit, line, min(line + block_size, len(ends)))
        start, line = (line_ends[after - 1], after) if after > line else (limit, line)
        bounds.append(start)
    stops = np.frombuffer(bounds, dtype=np.int64)
    return np.stack([stops[:-1], stops[1:]], axis=1)


def _windows(stream: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """Return ``width`` tokens from each start, <dtype>[B, width], with zeros after the end of the stream."""
    if int(starts.max()) + width <= len(stream):
        return sliding_window_view(stream, width)[starts]
    windows = np.zeros((len(starts), width), dtype=stream.dtype)
    for row, start in enumerate(starts.tolist()):
        tokens = stream[start : start + width]
        windows[row, : len(tokens)] = tokens
    return windows


class TokenBlocks:
    """Blocks of one split, read from disk on demand; ``sizes`` <int32>[blocks] are their lengths in tokens.

    ``paths`` are the split's files without ``.bin`` and ``.idx``; several are read as one. ``break_mode`` is that of
    ``block_slices``. ``first_symbol`` is put in front of every block, and counts in ``block_size``.
    """

    def __init__(self, paths: Sequence[str], break_mode: str, block_size: int, first_symbol: int) -> None:
        self.paths = list(paths)
        self.first_symbol = first_symbol
        self._streams: list[np.ndarray] | None = None
        starts: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        self._dtypes: list[np.dtype] = []
        for path in self.paths:
            line_sizes, dtype = read_index(path)
            self._dtypes.append(dtype)
            slices = block_slices(line_sizes, break_mode, block_size - 1)
            starts.append(slices[:, 0].copy())
            sizes.append((slices[:, 1] - slices[:, 0] + 1).astype(np.int32))
        self._starts = np.concatenate(starts)
        self._first_blocks = np.cumsum([0] + [len(part) for part in starts])
        if not len(self._starts):
            raise ValueError(
                f"{', '.join(self.paths)}: the split is empty (no line has a token). Check that the text is not empty, "
                "and prepare it again"
            )
        self.sizes = np.concatenate(sizes)

    def __len__(self) -> int:
        return len(self._starts)

    def blocks_of_files(self, number: int) -> int:
        """Return the number of blocks in the first ``number`` files."""
        return int(self._first_blocks[number])

    def __getstate__(self) -> dict:
        # Pickling a memory map would copy the whole file; workers open it themselves.
        return {**self.__dict__, "_streams": None}

    @property
    def streams(self) -> list[np.ndarray]:
        """The memory-mapped tokens of each file, <uint16 or int32>[tokens]."""
        if self._streams is None:
            # Views as plain arrays, because slicing np.memmap itself takes several times as long.
            self._streams = [
                np.memmap(path + ".bin", dtype=dtype, mode="r").view(np.ndarray)
                for path, dtype in zip(self.paths, self._dtypes)
            ]
        return self._streams

    def read(self, indices: np.ndarray, filler: int, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Read blocks <int64>[B]; return tokens <int64>[B, T] and lengths <int64>[B].

        The filler pads the tokens to the longest block, or to ``width``.
        """
        lengths = self.sizes[indices].astype(np.int64)
        starts, width = self._starts[indices], width or int(lengths.max())
        tokens = np.empty((len(indices), width), dtype=np.int64)
        tokens[:, 0] = self.first_symbol
        if len(self.paths) == 1:
            tokens[:, 1:] = _windows(self.streams[0], starts, width - 1)
        else:
            parts = np.searchsorted(self._first_blocks, indices, side="right") - 1
            for part in np.unique(parts):
                rows = np.flatnonzero(parts == part)
                tokens[rows, 1:] = _windows(self.streams[part], starts[rows], width - 1)
        if lengths.min() < width:
            np.copyto(tokens, filler, where=np.arange(width) >= lengths[:, None])
        return tokens, lengths

    def __getitem__(self, index: int) -> np.ndarray:
        """Return a block <int64>[n]: the first symbol, followed by the block's tokens."""
        return self.read(np.array([index]), self.first_symbol)[0][0]

    def check_tokens(self, symbols: int) -> None:
        """Check the tokens of all files; see ``fairseq_maelm.data.token_files.check_tokens``."""
        for path in self.paths:
            check_tokens(path, symbols)


def split_files(folder: str, split: str, combine: bool) -> list[str]:
    """Find the files of a split: ``split``, and if ``combine``, also ``split1``, ``split2`` and so on."""
    paths: list[str] = []
    while combine or not paths:
        path = os.path.join(folder, f"{split}{len(paths) or ''}")
        if not (os.path.exists(path + ".bin") and os.path.exists(path + ".idx")):
            break
        paths.append(path)
    if not paths:
        raise FileNotFoundError(
            f"there are no files {split}.bin and {split}.idx in {folder}. Create them with `maelm prepare corpus`, or "
            "with `fairseq-preprocess --only-source --srcdict dict.txt --dataset-impl mmap`"
        )
    return paths


def shard_files(folders: Sequence[str], split: str, epoch: int, combine: bool) -> list[str]:
    """Find the files of the training split for an epoch, which cycles through the folders."""
    # Searching all folders now reports a missing file before the epoch that needs it.
    return [split_files(folder, split, combine) for folder in folders][(epoch - 1) % len(folders)]
