"""Readers for UTF-8 text, plain or compressed, with line numbers, and for JSON lines."""

import bz2
import gzip
import logging
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairseq_maelm.files.atomic import CorpusError, parse_json

logger = logging.getLogger(__name__)

# Maximum number of invalid rows to name.
_SHOWN = 5
_OPENED: dict[str, Any] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
}
# Number of a file's first bytes that are looked at.
_HEAD = 8192
# UTF-16 has a NUL for every character of ASCII; one in this many bytes is more than other text has by accident.
_BYTES_PER_NUL = 40


def uncompressed_name(path: Path) -> Path:
    """Return a path without the suffix of its compression: .gz, .xz or .bz2, in any case."""
    return path.with_suffix("") if path.suffix.lower() in _OPENED else path


def decompressed(path: Path, stream: BinaryIO) -> BinaryIO:
    """Decompress a buffered stream as the file's name says."""
    opened: Any = _OPENED.get(path.suffix.lower(), lambda same: same)(stream)
    head = opened.peek(_HEAD)[:_HEAD]
    if head.count(0) * _BYTES_PER_NUL > len(head):
        raise CorpusError(f"{path} holds the character NUL as often as UTF-16 does: convert it to UTF-8 with iconv")
    if head[:-1].count(b"\r") - head.count(b"\r\n") > head.count(b"\n"):
        raise CorpusError(
            f"{path} ends its lines with a carriage return only: convert it, for example with tr '\\r' '\\n'"
        )
    return cast(BinaryIO, opened)


def first_bytes(path: Path) -> bytes:
    """Return a file's first bytes, decompressed; none of a pipe, which could not be read again."""
    if not path.is_file():
        return b""
    with open(path, "rb") as stream, damage_told(path):
        return bytes(cast(Any, decompressed(path, stream)).peek(_HEAD))


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Convert decompression errors to a CorpusError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # A BadGzipFile, and bzip2's error, are an OSError without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorpusError(f"{path} is damaged or truncated: {error}") from error


def decode(path: Path, first_line: int, data: bytes) -> str:
    """Decode whole UTF-8 lines from ``first_line`` on, without byte order mark; a CorpusError names line and byte."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        byte = error.start - data.rfind(b"\n", 0, error.start)
        raise CorpusError(
            f"{path}:{line}: not valid UTF-8: byte {byte} of the line is 0x{data[error.start]:02x} ({error.reason}); "
            "convert the file, for example with iconv"
        ) from error
    return text.removeprefix("\ufeff") if first_line == 1 else text


def numbered_lines(path: Path, blank: bool = True) -> Iterator[tuple[int, str]]:
    """Yield line numbers, from 1, and lines without their line ends.

    Only a line feed, with or without a carriage return before it, ends a line; Python's text files would also break at
    other characters. Files whose names end in .gz, .xz or .bz2 are decompressed. If not ``blank``, skip lines that
    contain only white space.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    with open(path, "rb") as stream, damage_told(path):
        for number, data in enumerate(decompressed(path, stream), 1):
            line = decode(path, number, data).removesuffix("\n").removesuffix("\r")
            if "\0" in line:
                raise CorpusError(f"{path}:{number}: holds the character NUL: convert the file to UTF-8 text")
            if blank or line.strip():
                yield number, line


def parse_record(line: str, place: str) -> dict[str, Any]:
    """Parse a line as a JSON object; for other content, raise a CorpusError that names file and line."""
    record = parse_json(line, f"{place}: the record", strict=True)
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: a record must be a JSON object, not {type(record).__name__}")
    return record


def log_invalid(mistakes: Sequence[str]) -> None:
    """Log how many rows were left out as invalid, and the messages about the first of them."""
    if mistakes:
        shown = "; ".join(mistakes[:_SHOWN])
        logger.warning("%s invalid rows were skipped; the first: %s", f"{len(mistakes):,}", shown)


def columns_in(row: Sequence[Any]) -> str:
    """Return a row's number of columns as words for a message: "1 column", "2 columns"."""
    return f"{len(row)} column{'s' * (len(row) != 1)}"
