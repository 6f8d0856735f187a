"""Readers of text, JSON lines and FASTA, also compressed, in bounded memory; cleaning; removal of exact duplicates."""

import hashlib
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.fasta import fasta_records
from fairseq_maelm.files.kinds import DOCUMENTS, FASTA, JSON_LINES, TEXT, kind_of
from fairseq_maelm.files.lines import damage_told, decode, decompressed, parse_record
from fairseq_maelm.text.cleaning import clean_text, text_field

logger = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 64 * 2**20
_DIGEST_BYTES = 16
BLANK, TAGS, END = "blank", "tags", "end"
RECORDS = "records"  # of FASTA
# The lines that WikiExtractor writes before and after each document.
_DOCUMENT_TAG = re.compile(r"<doc [^>]*>\s*|</doc>\s*")


class Source(NamedTuple):
    """One input file."""

    path: Path
    json_field: str | None = None  # for JSON lines, the field that holds a record's text
    # What separates documents: ``BLANK`` lines, ``TAGS`` of WikiExtractor, every line's ``END``, ``RECORDS`` of FASTA.
    bounds: str = BLANK


class Segment(NamedTuple):
    """Some whole lines of one input file."""

    source: Source
    first_line: int  # number of the first line in its file, from 1
    data: bytes  # the undecoded lines
    starts_file: bool  # these are the first lines of their file, so a document begins here


def find_sources(inputs: Iterable[Path], json_field: str = "text", line_documents: bool = False) -> list[Source]:
    """List the input files; folders are searched recursively, in sorted order, without hidden files.

    ``line_documents`` makes each line of plain text a document.
    """
    sources: list[Source] = []
    for path in inputs:
        if path.is_dir():
            inside = _files_in(path)
            if not inside:
                raise CorpusError(f"the folder {path} holds no files: give a folder with text files")
            sources.extend(_source(file, json_field, line_documents) for file in inside)
        elif path.is_file():
            sources.append(_source(path, json_field, line_documents))
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


def _source(path: Path, json_field: str, line_documents: bool) -> Source:
    kind = kind_of(path, (TEXT, DOCUMENTS, JSON_LINES, FASTA))
    if kind == JSON_LINES:
        return Source(path, json_field, TAGS)
    if kind == FASTA:
        return Source(path, None, RECORDS)
    return Source(path, None, TAGS if kind == DOCUMENTS else END if line_documents else BLANK)


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
                    if self.source.bounds == RECORDS:
                        data += self._rest_of_record(stream, line + data.count(b"\n"))
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

    def _rest_of_record(self, stream: Any, line: int) -> bytes:
        """Read to the next name, so that no segment begins inside a sequence."""
        rest: list[bytes] = []
        size = 0
        while stream.peek(1)[:1] not in (b"", b">"):
            rest.append(stream.readline(LONGEST_LINE_BYTES))
            size += len(rest[-1])
            if size >= LONGEST_LINE_BYTES:
                raise CorpusError(
                    f"{self.source.path}:{line}: the sequence of this line is longer than {LONGEST_LINE_BYTES >> 20} "
                    "MiB: split it into several records"
                )
        return b"".join(rest)


def segment_lines(segment: Segment, invalid: list[str] | None = None) -> Iterator[str | None]:
    """Yield a segment's lines before cleaning, with None at the start of a file and at each bound but a blank line.

    None marks a document boundary. Blank lines inside a JSON record or between tags do not end a document.
    If ``invalid`` is a list, messages about records without a text are added to it instead of being raised.
    """
    text = decode(segment.source.path, segment.first_line, segment.data)
    if segment.starts_file:
        yield None
    lines = text.split("\n")
    bounds = segment.source.bounds
    if bounds == RECORDS or segment.source.json_field is not None:
        for text in _record_texts(segment, lines, invalid):
            yield from text.split("\n")
            yield None
        return
    for line in lines[:-1] if lines[-1] == "" else lines:
        yield None if bounds == TAGS and _DOCUMENT_TAG.fullmatch(line) else line
        if bounds == END:
            yield None


def _record_texts(segment: Segment, lines: Sequence[str], invalid: list[str] | None) -> Iterator[str]:
    path, field = segment.source.path, segment.source.json_field
    numbered = enumerate(lines, segment.first_line)
    if field is None:
        for record in fasta_records(numbered, path, invalid):
            yield record.sequence
        return
    for number, line in numbered:
        if line and not line.isspace():
            try:
                yield _record_text(line, f"{path}:{number}", field)
            except CorpusError as error:
                if invalid is None:
                    raise
                invalid.append(str(error))


def _record_text(line: str, place: str, field: str) -> str:
    record = parse_record(line, place)
    if field not in record:
        raise CorpusError(
            f"{place}: the record has no field {field!r}; name the field that holds the text with --json-field"
        )
    return text_field(record, field, place)


def cleaned_lines(segment: Segment, invalid: list[str] | None = None) -> Iterator[str]:
    """Yield a segment's cleaned paragraphs in order, "" where a document ends; see ``segment_lines``."""
    for line in segment_lines(segment, invalid):
        if line is None:
            yield ""
        elif (paragraph := clean_text(line)) or segment.source.bounds == BLANK:
            yield paragraph


def read_documents(path: Path | str, json_field: str = "text") -> Iterator[list[str]]:
    """Yield the documents of a file or folder, each as the list of its cleaned, non-empty paragraphs.

    Blank lines separate documents in plain text; in JSON lines and FASTA each record is a document.

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


def clean_segments(
    segments: Sequence[Segment], with_digests: bool, skip_invalid: bool = False
) -> tuple[list[bytes], bytes, list[str]]:
    """Clean consecutive segments of the corpus; called by the workers of the first step.

    Return the paragraphs in UTF-8, with empty lines at document boundaries; their joined 16-byte hashes, if asked for;
    and messages about the records that were left out.
    """
    invalid: list[str] = []
    skipped = invalid if skip_invalid else None
    lines = [line.encode("utf-8") for segment in segments for line in cleaned_lines(segment, skipped)]
    hashed = (hashlib.blake2b(line, digest_size=_DIGEST_BYTES).digest() for line in lines if line and with_digests)
    return lines, b"".join(hashed), invalid


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
