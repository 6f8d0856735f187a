"""Cleaning text: one normal form for every paragraph, and exact duplicates found by their hash."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.corpus.reading import Segment, SourceReader, find_sources, segment_lines
from fairseq_maelm.text.cleaning import clean_text

DIGEST_BYTES = 16


def cleaned_lines(segment: Segment) -> Iterator[str]:
    """Yield a segment's cleaned paragraphs in order, and an empty string at every end of a document."""
    for line in segment_lines(segment):
        if line is None:
            yield ""
        elif (paragraph := clean_text(line)) or segment.source.json_field is None:
            yield paragraph


def read_documents(path: Path | str, json_field: str = "text") -> Iterator[list[str]]:
    """Yield the documents of a file or folder, each as the list of its cleaned, non-empty paragraphs.

    Plain text separates documents by blank lines; every record of JSON lines is a document. Memory holds one document.

    Raises:
        CorpusError: unreadable input, invalid UTF-8 or a bad record; the message names file and line.
    """
    document: list[str] = []
    for source in find_sources([Path(path)], json_field):
        for segment in SourceReader(source, segment_bytes=2**20):
            for paragraph in cleaned_lines(segment):
                if paragraph:
                    document.append(paragraph)
                elif document:
                    yield document
                    document = []
        if document:
            yield document
            document = []


class CleanedBlock(NamedTuple):
    """Cleaned paragraphs, one a line, with a blank line between documents."""

    data: bytes  # the UTF-8 lines, each ended by a newline; empty when nothing was left
    paragraphs: int  # the number of lines that are not blank
    documents: int  # how many documents begin inside the block
    starts_document: bool  # whether the first paragraph begins a document
    ends_document: bool  # whether a document ended after the last paragraph
    digests: bytes = b""  # 16 bytes for every paragraph when duplicates are looked for


def assemble_block(lines: Iterable[bytes]) -> CleanedBlock:
    """Build a block from cleaned lines in which any number of empty ones marks the end of a document."""
    kept: list[bytes] = []
    documents = paragraphs = 0
    boundary = starts_document = False
    for line in lines:
        if not line:
            boundary = True
            continue
        if boundary:
            documents += 1
            if kept:
                kept.append(b"")
            else:
                starts_document = True
            boundary = False
        kept.append(line)
        paragraphs += 1
    data = b"\n".join(kept) + b"\n" if kept else b""
    return CleanedBlock(data, paragraphs, documents, starts_document, boundary)


def clean_segments(segments: Sequence[Segment], with_digests: bool) -> CleanedBlock:
    """Clean consecutive segments of the corpus into one block; what the worker processes of the first step run."""
    lines = [line.encode("utf-8") for segment in segments for line in cleaned_lines(segment)]
    block = assemble_block(lines)
    if not with_digests:
        return block
    digests = b"".join(hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest() for line in lines if line)
    return block._replace(digests=digests)


class Deduplicator:
    """Drops every paragraph whose exact text came before.

    It remembers one 128-bit hash for each distinct paragraph, which takes about 100 bytes of memory; two different
    paragraphs share a hash with a probability below 1e-18 even among 10^10 of them.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self.dropped = 0

    def filter(self, block: CleanedBlock) -> CleanedBlock:
        """Return the block without the paragraphs seen before; documents that lose all their paragraphs vanish."""
        fresh: list[bool] = []
        for start in range(0, len(block.digests), DIGEST_BYTES):
            digest = block.digests[start : start + DIGEST_BYTES]
            fresh.append(digest not in self._seen)
            self._seen.add(digest)
        if all(fresh):
            return block
        self.dropped += len(fresh) - sum(fresh)
        is_fresh = iter(fresh)
        lines = [line for line in block.data.split(b"\n")[:-1] if not line or next(is_fresh)]
        # An empty line is the end of a document.
        return assemble_block([*[b""] * block.starts_document, *lines, *[b""] * block.ends_document])
