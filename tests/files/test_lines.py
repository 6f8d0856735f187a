"""Numbered lines of text files: line ends, compression, and files that are not text."""

import lzma
from pathlib import Path

import pytest

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.lines import decode, numbered_lines


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("\ufefffirst\u2028still first\r\n\n \x0b\nl\u00e4st".encode())
    expected = [(1, "first\u2028still first"), (2, ""), (3, " \x0b"), (4, "l\u00e4st")]
    assert list(numbered_lines(path)) == expected
    assert list(numbered_lines(path, blank=False)) == [expected[0], expected[3]]


def test_compressed_files_are_read_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.xz"
    path.write_bytes(lzma.compress(b"one\ntwo\n" * 100))
    assert len(list(numbered_lines(path))) == 200
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorpusError, match="text.txt.* is damaged or truncated"):
        list(numbered_lines(path))


def test_many_lines_are_decoded_at_once() -> None:
    assert decode(Path("text"), 1, "\ufeffa\n\u00e9\n".encode()) == "a\n\u00e9\n"
    assert decode(Path("text"), 2, "\ufeffa\n".encode()) == "\ufeffa\n"
    with pytest.raises(CorpusError, match=r"^text:12: not valid UTF-8: byte 2 of the line is 0xff"):
        decode(Path("text"), 10, b"a\n\n\xc3\xa4"[:3] + b"b\xff\n")
