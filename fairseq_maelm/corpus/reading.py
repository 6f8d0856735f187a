"""Readers of plain text and JSON lines, also compressed, in bounded memory; cleaning; removal of exact duplicates."""

import hashlib
import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.lines import damage_told, decode, decompressed, parse_record, text_field
from fairseq_maelm.text.cleaning import clean_text

logger = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 64 * 2**20
_DIGEST_BYTES = 16
_JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
_OTHER_FORMATS = {
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".xlsx"), "a table: write its texts to a .txt file, or each row as a "
                    "record to a .jsonl file; `maelm prepare sentences` reads tables for fine-tuning"),
    ".json": "one JSON value: write one record per line to a .jsonl file",
    **dict.fromkeys((".bz2", ".zip", ".zst", ".7z", ".tar"), "compressed in a way that is not read: unpack "
                    "it, or compress its files by gzip or xz"),
}  # fmt: skip


class Source(NamedTuple):
    """One input file, and for JSON lines the field that holds a record's text (None for plain text)."""

    path: Path
    json_field: str | None = None


class Segment(NamedTuple):
    """Some whole lines of one input file."""

    source: Source
    first_line: int  # number of the first line in its file, from 1
    data: bytes  # the undecoded lines
    starts_file: bool  # these are the first lines of their file, so a document begins here


def find_sources(inputs: Iterable[Path], json_field: str = "text") -> list[Source]:
    """List the input files; folders are searched recursively, in sorted order, without hidden files."""
    sources: list[Source] = []
    for path in inputs:
        if path.is_dir():
            inside = _files_in(path)
            if not inside:
                raise CorpusError(f"the folder {path} holds no files: give a folder with text files")
            sources.extend(_source(file, json_field) for file in inside)
        elif path.is_file():
            sources.append(_source(path, json_field))
        else:
            raise CorpusError(f"the input {path} does not exist, or is neither a file nor a folder")
    return sources


def _files_in(folder: Path) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.is_file():
            files.append(path)
        elif path.is_symlink() and path.is_dir():
            # It may lead to files that are read anyway.
            logger.warning("%s is a link to a folder, which is not read: to read it, name it as an input", path)
    return files


def _source(path: Path, json_field: str) -> Source:
    return Source(path, json_field if text_suffix(path) in _JSON_LINES_SUFFIXES else None)


def text_suffix(path: Path) -> str:
    """Return the suffix of a text file, without that of its compression, such as ".txt".

    Raises:
        CorpusError: it is the suffix of a table, or of a format that is not read.
    """
    suffix = (path.with_suffix("") if path.suffix.lower() in (".gz", ".xz") else path).suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise CorpusError(f"{path} is {_OTHER_FORMATS[suffix]}")
    return suffix


class _HashingFile(io.FileIO):
    """A raw file that counts and hashes (SHA-256) its bytes as they are read, so that inputs are read only once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.sha256()
        self.size = 0

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.size += count
        return count


class SourceReader:
    """Read one input file as segments of whole lines."""

    def __init__(self, source: Source, segment_bytes: int) -> None:
        self.source = source
        self.bytes_read = 0  # so far, of the file on disk
        self.sha256 = ""  # set at the end of the file
        self._segment_bytes = segment_bytes

    def __iter__(self) -> Iterator[Segment]:
        """Yield the file's lines in order, about ``segment_bytes`` at a time."""
        path, line = self.source.path, 1
        try:
            with damage_told(path), _HashingFile(path) as file:
                stream = decompressed(path, io.BufferedReader(file, 2**20))
                while data := stream.read(self._segment_bytes):
                    if not data.endswith(b"\n"):
                        data += self._rest_of_line(stream, line + data.count(b"\n"))
                    self.bytes_read = file.size
                    yield Segment(self.source, line, data, starts_file=line == 1)
                    line += data.count(b"\n")
                self.bytes_read, self.sha256 = file.size, file.digest.hexdigest()
        except OSError as error:
            raise CorpusError(f"cannot read {path}: {error.strerror or error}") from error

    def _rest_of_line(self, stream: BinaryIO, line: int) -> bytes:
        rest = stream.readline(LONGEST_LINE_BYTES)
        if len(rest) == LONGEST_LINE_BYTES:
            raise CorpusError(
                f"{self.source.path}:{line}: this line is longer than {LONGEST_LINE_BYTES >> 20} MiB; "
                "write one paragraph per line and a blank line between documents"
            )
        return rest


def segment_lines(segment: Segment) -> Iterator[str | None]:
    """Yield a segment's lines before cleaning, with None at the start of a file and after each JSON record.

    None marks a document boundary without a blank line. Blank lines inside a JSON record do not end a document.
    """
    text = decode(segment.source.path, segment.first_line, segment.data)
    if segment.starts_file:
        yield None
    lines = text.split("\n")
    if segment.source.json_field is None:
        yield from lines[:-1] if lines[-1] == "" else lines
        return
    for number, line in enumerate(lines, segment.first_line):
        if line and not line.isspace():
            place = f"{segment.source.path}:{number}"
            record, field = parse_record(line, place), segment.source.json_field
            if field not in record:
                raise CorpusError(
                    f"{place}: the record has no field {field!r}; name the field that holds the text with --json-field"
                )
            yield from text_field(record, field, place).split("\n")
            yield None


def cleaned_lines(segment: Segment) -> Iterator[str]:
    """Yield a segment's cleaned paragraphs in order, and an empty string where a document ends."""
    for line in segment_lines(segment):
        if line is None:
            yield ""
        elif (paragraph := clean_text(line)) or segment.source.json_field is None:
            yield paragraph


def read_documents(path: Path | str, json_field: str = "text") -> Iterator[list[str]]:
    """Yield the documents of a file or folder, each as the list of its cleaned, non-empty paragraphs.

    Blank lines separate documents in plain text; in JSON lines each record is a document.

    Raises:
        CorpusError: the input cannot be read, is not UTF-8, or holds a bad record; the message names file and line.
    """
    for source in find_sources([Path(path)], json_field):
        document: list[str] = []
        for segment in SourceReader(source, segment_bytes=2**20):
            for paragraph in cleaned_lines(segment):
                if paragraph:
                    document.append(paragraph)
                elif document:
                    yield document
                    document = []
        if document:
            yield document


def clean_segments(segments: Sequence[Segment], with_digests: bool) -> tuple[list[bytes], bytes]:
    """Clean consecutive segments of the corpus; called by the workers of the first step.

    Returns:
        the paragraphs in UTF-8, with one or more empty lines at each document boundary; and with ``with_digests`` the
        joined 16-byte hashes of the paragraphs, otherwise b"".
    """
    lines = [line.encode("utf-8") for segment in segments for line in cleaned_lines(segment)]
    hashed = (hashlib.blake2b(line, digest_size=_DIGEST_BYTES).digest() for line in lines if line and with_digests)
    return lines, b"".join(hashed)


class Deduplicator:
    """Drop every paragraph that is an exact copy of an earlier one.

    Each distinct paragraph costs about 100 bytes of memory for its 128-bit hash. Among 10^10 paragraphs, the
    probability that any two share a hash is below 1e-18.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self.dropped = 0

    def filter(self, lines: Iterable[bytes], digests: bytes) -> Iterator[bytes]:
        """Yield the empty lines, and the paragraphs whose digests were not seen before."""
        position = 0
        for line in lines:
            if line:
                digest = digests[position : position + _DIGEST_BYTES]
                position += _DIGEST_BYTES
                if digest in self._seen:
                    self.dropped += 1
                    continue
                self._seen.add(digest)
            yield line
