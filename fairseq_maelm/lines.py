"""Lines of UTF-8 text files, plain or compressed, with their numbers, and records of JSON lines."""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairseq_maelm.files import CorpusError, parse_json
from fairseq_maelm.text.cleaning import checked_text


def decompressed(path: Path, stream: BinaryIO) -> BinaryIO:
    """Read a stream through gzip or xz if the file's name says so."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    return stream


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn what decompression raises into an error that names the file.

    Raises:
        CorpusError: the compressed file is damaged.
    """
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or cut short: {error}") from error


def decode(path: Path, first_line: int, data: bytes) -> str:
    """Decode whole lines, the first with a number from 1, without the byte order mark that a file may begin with.

    Raises:
        CorpusError: they are not UTF-8; the message names line and byte.
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
    """Yield the lines of a file without their ends, and their numbers from 1.

    Only a line feed, or a carriage return before one, ends a line: text holds other characters at which Python's text
    files would. A name that ends in .gz or .xz is a compressed file's. ``blank`` includes lines of white space alone.

    Raises:
        CorpusError: a line is not UTF-8 or holds NUL, or the compression is damaged; the message names file and line.
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
    """Read a line of JSON lines.

    Raises:
        CorpusError: it holds no record; the message begins with the place.
    """
    record = parse_json(line, f"{place}: the record")
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: not a JSON record, but {type(record).__name__}")
    return record


def text_field(record: Mapping[str, Any], name: str, place: str) -> str:
    """Take the text out of a record's field.

    Raises:
        CorpusError: it holds no text; the message begins with the place.
    """
    return checked_text(record[name], f"{place}: the field {name!r}")
