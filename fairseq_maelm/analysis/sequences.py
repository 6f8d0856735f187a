"""The text that is analyzed: blocks of tokens from a prepared data folder or from a text file."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Union

import numpy as np
from tqdm import tqdm

from fairseq_maelm.analysis.encoders import Encoder
from fairseq_maelm.batch import pad_rows
from fairseq_maelm.data.blocks import TokenBlocks
from fairseq_maelm.lines import numbered_lines

# The order in which blocks are taken is drawn by this key, with the seed of the analysis.
_ORDER = 7


class TextBlocks:
    """A text file cut into blocks of whole lines of one document, as in pretraining.

    Args:
        path: UTF-8, a paragraph a line, a blank line between documents.
        encoder: whose tokens to make.
        block_size: the most tokens of a block, special symbols included.
        tokens: stop reading the file once it has given this many.

    Raises:
        ValueError: the file is not UTF-8 text or has no line with a token.
    """

    def __init__(self, path: Path, encoder: Encoder, block_size: int, tokens: int) -> None:
        vocabulary = encoder.vocabulary
        last = [] if vocabulary.last is None else [vocabulary.last]
        line_end = [] if vocabulary.line_end is None else [vocabulary.line_end]
        lines: list[list[int]] = []
        numbered = numbered_lines(path)
        for _, line in tqdm(numbered, desc=f"reading {path.name}", unit=" lines", leave=False, mininterval=1.0):
            encoded = encoder.encode_line(line)
            lines.append([*encoded, *line_end] if encoded else [])
            tokens -= len(lines[-1])
            if tokens <= 0:
                break
        room = block_size - 1 - len(last)
        self._blocks = [np.array([vocabulary.first, *block, *last], dtype=np.int64) for block in pack(lines, room)]
        if not self._blocks:
            raise ValueError(f"{path} holds no line with a token")
        self.sizes = np.array([len(block) for block in self._blocks], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> np.ndarray:
        """<int64>[n]."""
        return self._blocks[index]


Blocks = Union[TokenBlocks, TextBlocks]


def pack(lines: Iterable[list[int]], room: int) -> Iterator[list[int]]:
    """Fill blocks of at most ``room`` tokens with whole lines of one document, which an empty line ends.

    A line that is longer than a block is cut.
    """
    block: list[int] = []
    for line in chain(lines, [[]]):
        if block and (not line or len(block) + len(line) > room):
            yield block
            block = []
        block = block + line
        while len(block) > room:
            yield block[:room]
            block = block[room:]


def choose_blocks(sizes: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """Take random blocks until they hold ``tokens`` tokens, or all there are.

    Returns:
        <int64>[chosen] by falling size: neighbors make batches with little padding, and the batch that needs most
        memory comes first.
    """
    order = np.random.default_rng([seed, _ORDER]).permutation(len(sizes))
    chosen = order[: int(np.searchsorted(np.cumsum(sizes[order]), tokens)) + 1]
    return chosen[np.argsort(-sizes[chosen], kind="stable")]


def batches(chosen: np.ndarray, sizes: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Cut blocks of falling size into batches of at most ``batch_tokens`` tokens, padding included, or one block."""
    result: list[list[int]] = []
    for index in chosen.tolist():
        if not result or (len(result[-1]) + 1) * sizes[result[-1][0]] > batch_tokens:
            result.append([])
        result[-1].append(index)
    return [np.array(batch, dtype=np.int64) for batch in result]


def padded_batch(blocks: Blocks, indices: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Return <int64>[B, T] padded on the right, and the lengths <int64>[B]."""
    rows = [blocks[int(index)] for index in indices]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return pad_rows(rows, lengths, pad), lengths
