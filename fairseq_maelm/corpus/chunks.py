"""The cleaned text on disk: paragraphs by the line, a blank line between documents, cut into chunks of whole lines."""

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.corpus.cleaning import CleanedBlock


@dataclass(frozen=True)
class Chunk:
    """A range of whole lines of a cleaned file: the unit of work, and of resuming, of the encoding step.

    Attributes:
        offset: its first byte.
        length: its bytes.
        first_document: the number of the document that its first paragraph belongs to.
        first_paragraph: the number of its first paragraph.
        starts_document: whether its first paragraph is the first of its document.
    """

    offset: int
    length: int
    first_document: int
    first_paragraph: int
    starts_document: bool


@dataclass(frozen=True)
class ChunkText:
    """The decoded content of a chunk of P paragraphs.

    Attributes:
        paragraphs: the paragraphs in order.
        documents: <int64>[P] the number of each paragraph's document.
        starts: <bool>[P] True where a paragraph is the first of its document.
    """

    paragraphs: list[str]
    documents: NDArray[np.int64]
    starts: NDArray[np.bool_]


def read_chunk(stream: BinaryIO, chunk: Chunk) -> ChunkText:
    """Reads one chunk of a cleaned text."""
    stream.seek(chunk.offset)
    lines = stream.read(chunk.length).decode("utf-8").split("\n")[:-1]
    is_blank = np.fromiter((not line for line in lines), dtype=bool, count=len(lines))
    starts_here = np.concatenate([[chunk.starts_document], is_blank[:-1]])[~is_blank]
    documents = chunk.first_document - int(chunk.starts_document) + np.cumsum(starts_here, dtype=np.int64)
    return ChunkText([line for line in lines if line], documents, starts_here)


class CleanedTextWriter:
    """Joins cleaned blocks into one text; every block that is not empty becomes one chunk of it.

    Attributes:
        documents: how many have begun.
        paragraphs: how many were written.
        bytes: the size of the text.
        chunks: the chunks written.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.documents = 0
        self.paragraphs = 0
        self.bytes = 0
        self.chunks: list[Chunk] = []
        self._stream = stream
        self._at_boundary = True

    def write(self, block: CleanedBlock) -> None:
        """Appends a block, whose first paragraph may continue the last document of the block before."""
        if block.paragraphs:
            starts_document = self._at_boundary or block.starts_document
            first_document = self.documents if starts_document else self.documents - 1
            if starts_document and self.chunks:
                self.bytes += self._stream.write(b"\n")
            self.chunks.append(Chunk(self.bytes, len(block.data), first_document, self.paragraphs, starts_document))
            self.bytes += self._stream.write(block.data)
            self.paragraphs += block.paragraphs
            # The block counts its first document only when it saw the boundary before it.
            self.documents += block.documents + int(starts_document and not block.starts_document)
            self._at_boundary = False
        self._at_boundary = self._at_boundary or block.ends_document
