"""Lines of a text file, plain or compressed by gzip, with their numbers."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without their ends, and their numbers from 1.

    Raises:
        ValueError: a line is not UTF-8, or the compression is damaged.
        FileNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
        try:
            for number, data in enumerate(cast(BinaryIO, stream), 1):
                line = _decode(path, number, data)
                if not line.isspace():
                    yield number, line.rstrip("\r\n")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged or cut short: {error}") from error


def _decode(path: Path, number: int, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: not valid UTF-8 ({error.reason} at byte {error.start + 1})") from error
    return text.removeprefix("\ufeff") if number == 1 else text


def check_identifier(identifier: str, place: str) -> str:
    """Refuse names of texts that run files cannot hold: their columns are separated by white space.

    Raises:
        ValueError: names the place.
    """
    if not identifier or identifier.split() != [identifier]:
        raise ValueError(f"{place}: the id {identifier!r} is empty or holds white space, which run files cannot hold")
    return identifier


def whole_number(text: str, place: str) -> int:
    """Read a relevance score.

    Raises:
        ValueError: names the place.
    """
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{place}: the score {text!r} is not a whole number") from None
