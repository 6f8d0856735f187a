"""Readers for UTF-8 text, plain or compressed, with line numbers, and for JSON lines."""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairseq_maelm.files.atomic import CorpusError, parse_json
from fairseq_maelm.text.cleaning import checked_text


def decompressed(path: Path, stream: BinaryIO) -> BinaryIO:
    """Decompress a stream if the file's name ends in .gz or .xz."""
    if path.suffix.lower() == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if path.suffix.lower() == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    return stream


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Convert decompression errors to a CorpusError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or truncated: {error}") from error


def decode(path: Path, first_line: int, data: bytes) -> str:
    """Decode whole lines, and remove a byte order mark from line 1 of the file.

    Args:
        path: the file, for error messages.
        first_line: line number of the first line in ``data``.
        data: the encoded lines.

    Raises:
        CorpusError: the lines are not UTF-8; the message names line and byte.
    """
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
    other characters. Files whose names end in .gz or .xz are decompressed. If not ``blank``, skip lines that contain
    only white space.

    Raises:
        CorpusError: a line is not UTF-8 or has a NUL, or the compressed file is damaged.
        FileNotFoundError: there is no such file.
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
    record = parse_json(line, f"{place}: the record")
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: a record must be a JSON object, not {type(record).__name__}")
    return record


def columns_in(row: Sequence[Any]) -> str:
    """Return a row's number of columns as words for a message: "1 column", "2 columns"."""
    return f"{len(row)} column{'s' * (len(row) != 1)}"


def text_field(record: Mapping[str, Any], name: str, place: str) -> str:
    """Return a text field of a record; for other values, raise a CorpusError that names file and line."""
    return checked_text(record[name], f"{place}: the field {name!r}")
