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


class CleanedBlock(NamedTuple):
    """Cleaned paragraphs, one per line, with a blank line between documents."""

    data: bytes  # UTF-8 lines, each with a newline at its end; empty if cleaning left nothing
    paragraphs: int  # number of lines that are not blank
    documents: int  # number of documents that begin in the block
    starts_document: bool  # the first paragraph begins a document
    ends_document: bool  # a document ended after the last paragraph
    digests: bytes = b""  # 16 bytes per paragraph if duplicates are removed


def assemble_block(lines: Iterable[bytes]) -> CleanedBlock:
    """Build a block from cleaned lines, in which one or more empty lines end a document."""
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
    """Clean consecutive segments of the corpus into one block; called by the workers of the first step."""
    lines = [line.encode("utf-8") for segment in segments for line in cleaned_lines(segment)]
    block = assemble_block(lines)
    if not with_digests:
        return block
    digests = b"".join(hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest() for line in lines if line)
    return block._replace(digests=digests)


class Deduplicator:
    """Drop every paragraph that is an exact copy of an earlier one.

    Each distinct paragraph costs about 100 bytes of memory for its 128-bit hash. Among 10^10 paragraphs, the
    probability that any two share a hash is below 1e-18.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self.dropped = 0

    def filter(self, block: CleanedBlock) -> CleanedBlock:
        """Return the block without paragraphs that were seen before, and without documents that this empties."""
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
        return assemble_block([*[b""] * block.starts_document, *lines, *[b""] * block.ends_document])
