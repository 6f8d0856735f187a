"""Checks of fairseq's memory-mapped files before use: the whole .idx in every run, and each token of the .bin once.

Without these checks, a flipped bit or an incomplete copy would cause an error hours later, or none at all.
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
from numpy.typing import NDArray

from fairseq_maelm.files.atomic import CorpusError, read_json, write_json

logger = logging.getLogger(__name__)

# The layout of an .idx: magic, version, code of the integer type, number of items, then all lengths <int32>, then all
# byte offsets <int64>.
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQ")
_NAMES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4"}
DTYPES = {code: np.dtype(name) for code, name in _NAMES.items()}

# File that stores the smallest and largest token of each .bin in its folder, so that later runs need not read the .bin.
_REMEMBERED = ".checked.json"
_TOKENS_AT_A_TIME = 2**24


def read_index(prefix: str) -> tuple[np.ndarray, np.dtype]:
    """Read ``prefix``.idx: the lengths <int32>[items], and the dtype of the tokens in ``prefix``.bin."""
    path, size = f"{prefix}.idx", os.path.getsize(f"{prefix}.idx")
    with open(path, "rb") as stream:
        head = stream.read(HEADER.size).ljust(HEADER.size, b"\0")
    magic, version, code, items = HEADER.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or code not in DTYPES:
        raise _damaged(path, "it does not begin with the header of fairseq's memory-mapped format")
    if size != HEADER.size + 12 * items:
        raise _damaged(path, f"it has {size:,} bytes, but its {items:,} items need {HEADER.size + 12 * items:,}")
    lengths = np.fromfile(path, "<i4", items, offset=HEADER.size)
    offsets = np.fromfile(path, "<i8", items, offset=HEADER.size + 4 * items)
    sizes = lengths * np.int64(DTYPES[code].itemsize)
    if items and (lengths.min() < 0 or not np.array_equal(offsets, np.cumsum(sizes) - sizes)):
        raise _damaged(path, "its lengths and its offsets contradict each other")
    expected, actual = int(sizes.sum()), os.path.getsize(f"{prefix}.bin")
    if actual != expected:
        raise ValueError(
            f"{prefix}.bin has {actual:,} bytes, but {path} describes {expected:,}: one of them was not copied "
            "completely, or they do not belong together. Copy both again, or prepare the text again"
        )
    return lengths, DTYPES[code]


def _damaged(path: str, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason}. Copy it again, or prepare the text again")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read a .npz as a dictionary of arrays; raise a ValueError if it is damaged."""
    try:
        return dict(np.load(path))
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise _damaged(str(path), f"it cannot be read ({error})") from error


def check_tokens(prefix: str, symbols: int) -> None:
    """Check that all tokens of a .bin are below ``symbols``, the size of the dictionary without <mask>.

    The file is read only if it has changed since its last check.
    """
    _check_range(f"{prefix}.bin", *_range_of_tokens(prefix), symbols)


def check_array(path: Path, tokens: np.ndarray, symbols: int) -> None:
    """Check that all tokens <int>[n] of a file are below ``symbols``, the size of the dictionary without <mask>."""
    if len(tokens):
        _check_range(str(path), int(tokens.min()), int(tokens.max()), symbols)


def _check_range(path: str, smallest: int, largest: int, symbols: int) -> None:
    if smallest < 0 or largest >= symbols:
        raise ValueError(
            f"{path} holds the token id {smallest if smallest < 0 else largest}, but dict.txt has only {symbols} "
            "symbols: copy the file again if it is damaged, or use the dictionary that the text was binarized with"
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
    smallest = min(int(part.min()) for part in parts) if dtype.kind == "i" else 0
    measured = {**known, "smallest": smallest, "largest": max(int(part.max()) for part in parts)}
    with contextlib.suppress(OSError):  # a shared folder may be read-only
        write_json(memory, {**remembered, file.name: measured})
    return smallest, measured["largest"]
