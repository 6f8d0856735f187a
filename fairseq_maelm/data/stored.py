"""fairseq's memory-mapped format, checked before it is used: of the .idx everything, and every token of the .bin once.

A flipped bit or half a copy would otherwise show hours later, in the epoch that reads it, or never.
"""

import contextlib
import logging
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_maelm.files import CorpusError, read_json, write_json

logger = logging.getLogger(__name__)

# The layout of an .idx: magic, version, code of the integer type, number of items, then all lengths <int32>, then all
# byte offsets <int64>.
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQ")
_DTYPES = {code: np.dtype(name) for code, name in enumerate(("u1", "i1", "<i2", "<i4", "<i8"), 1)}
DTYPES = {**_DTYPES, 8: np.dtype("<u2"), 9: np.dtype("<u4")}

# Of the folder: what was found when its .bin files were read, for the next run.
_REMEMBERED = ".checked.json"
_TOKENS_AT_A_TIME = 2**24


def read_index(prefix: str) -> tuple[np.ndarray, np.dtype]:
    """Read ``prefix``.idx: the lengths <int32>[items], and the type of the tokens in ``prefix``.bin.

    Raises:
        ValueError: it is damaged, or the .bin is not as long as it says; names the file.
    """
    path, size = f"{prefix}.idx", os.path.getsize(f"{prefix}.idx")
    with open(path, "rb") as stream:
        head = stream.read(HEADER.size).ljust(HEADER.size, b"\0")
    magic, version, code, items = HEADER.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or code not in DTYPES:
        raise _damaged(path, "it does not begin as fairseq's memory-mapped format does")
    if size != HEADER.size + 12 * items:
        raise _damaged(path, f"it has {size:,} bytes, and its {items:,} items need {HEADER.size + 12 * items:,}")
    lengths = np.fromfile(path, "<i4", items, offset=HEADER.size)
    offsets = np.fromfile(path, "<i8", items, offset=HEADER.size + 4 * items)
    own = lengths * np.int64(DTYPES[code].itemsize)
    if items and (lengths.min() < 0 or not np.array_equal(offsets, np.cumsum(own) - own)):
        raise _damaged(path, "its lengths and its offsets do not belong together")
    expected, actual = int(own.sum()), os.path.getsize(f"{prefix}.bin")
    if actual != expected:
        raise ValueError(
            f"{prefix}.bin has {actual:,} bytes, but {path} describes {expected:,}: one of them was not copied "
            "whole, or they do not belong together. Copy both again, or prepare the text again"
        )
    return lengths, DTYPES[code]


def _damaged(path: str, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason}. Copy it again, or prepare the text again")


def read_arrays(path: Path, mapped: bool = False) -> Any:
    """Read a .npz as a dictionary of arrays, or a .npy as an array; raise a ValueError for a damaged one."""
    try:
        content = np.load(path, mmap_mode="r" if mapped else None)
        return dict(content) if path.suffix == ".npz" else content
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise _damaged(str(path), f"it cannot be read ({error})") from error


def check_tokens(prefix: str, symbols: int) -> None:
    """Refuse a .bin with tokens that a dictionary of so many symbols, <mask> not counted, does not have.

    All tokens are read, at the speed of the memory, when a file is opened for the first time since it was changed.

    Raises:
        ValueError: names the file and the token.
    """
    smallest, largest = _range_of_tokens(prefix)
    if smallest < 0 or largest >= symbols:
        raise ValueError(
            f"{prefix}.bin holds token {smallest if smallest < 0 else largest}, but dict.txt has only {symbols} "
            "symbols: the file is damaged, or the text was binarized with another dictionary"
        )


def _range_of_tokens(prefix: str) -> tuple[int, int]:
    file, memory = Path(f"{prefix}.bin"), Path(prefix).with_name(_REMEMBERED)
    state = file.stat()
    known = {"bytes": state.st_size, "changed_ns": state.st_mtime_ns}
    remembered = {}
    with contextlib.suppress(CorpusError, OSError):
        remembered = read_json(memory)
    facts = remembered.get(file.name)
    if isinstance(facts, dict) and {**facts, **known} == facts and facts.keys() >= {"smallest", "largest"}:
        return int(facts["smallest"]), int(facts["largest"])
    dtype = read_index(prefix)[1]
    if not state.st_size:
        return 0, 0
    tokens = np.memmap(file, dtype, "r").view(np.ndarray)
    parts = [tokens[begin : begin + _TOKENS_AT_A_TIME] for begin in range(0, len(tokens), _TOKENS_AT_A_TIME)]
    # An unsigned minimum is no news.
    smallest = min(int(part.min()) for part in parts) if dtype.kind == "i" else 0
    found = {**known, "smallest": smallest, "largest": max(int(part.max()) for part in parts)}
    with contextlib.suppress(OSError):  # a folder that others share may be read-only
        write_json(memory, {**remembered, file.name: found})
    return smallest, found["largest"]
