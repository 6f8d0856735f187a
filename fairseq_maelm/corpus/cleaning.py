"""Cleaning of documents, and removal of exact duplicates by their hash."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.corpus.reading import Segment, SourceReader, find_sources, segment_lines
from fairseq_maelm.text.cleaning import clean_text

DIGEST_BYTES = 16


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


class CleanedLines(NamedTuple):
    """Cleaned paragraphs, one per line, with one or more empty lines at each end of a document."""

    data: bytes  # UTF-8 lines, each with a newline at its end
    digests: bytes  # 16 bytes per paragraph if duplicates are removed


def clean_segments(segments: Sequence[Segment], with_digests: bool) -> CleanedLines:
    """Clean consecutive segments of the corpus; called by the workers of the first step."""
    lines = [line.encode("utf-8") for segment in segments for line in cleaned_lines(segment)]
    hashed = (hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest() for line in lines if line and with_digests)
    return CleanedLines(b"".join(line + b"\n" for line in lines), b"".join(hashed))


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
                digest = digests[position : position + DIGEST_BYTES]
                position += DIGEST_BYTES
                if digest in self._seen:
                    self.dropped += 1
                    continue
                self._seen.add(digest)
            yield line
