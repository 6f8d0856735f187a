"""Encode cleaned text chunk by chunk into part files, and join them into memory-mapped datasets.

The cleaned text has one paragraph per line and a blank line between documents. A chunk is a range of whole lines. A
hash of a document's number assigns it to the validation split or to a training shard.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.data.random_bits import GOLDEN_GAMMA, mix
from fairseq_maelm.data.token_files import DTYPES, HEADER, MAGIC, VERSION
from fairseq_maelm.files.atomic import atomic_file
from fairseq_maelm.text.vocabulary import END_OF_SENTENCE, TextEncoder

COUNTS = (
    "documents",
    "paragraphs",
    "characters",
    "bytes",
    "tokens",
    "unknown_tokens",
    "paragraphs_without_tokens",
    "spaces",  # tokens that are only the start of a word
)

_PARAGRAPHS_AT_A_TIME = 1024

_DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}
_BLOCK_ITEMS = 2**20

# The arrays of one target (a shard or validation) in a part: ids <uint16 or uint32>[tokens], lengths <int32>[items],
# counts <int64>[len(COUNTS)].
PartArrays = tuple[NDArray[np.generic], NDArray[np.int32], NDArray[np.int64]]


_BLOCK = 2**20


def random_keys(first: int, count: int, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return pseudo-random keys <uint64>[count] for the numbers ``first`` to ``first + count - 1``.

    key(n) = mix((n + 1) * gamma + hash(seed, purpose)), as in splitmix64 (Steele et al., 2014). Keys are uniform over
    all 64-bit values, and distinct for distinct numbers because splitmix64 is a bijection.
    """
    start = int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "little")
    return mix(np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN_GAMMA + np.uint64(start))


class Split(NamedTuple):
    """Maps each document to a training shard or to validation."""

    seed: int
    shards: int  # number of shards of the training split
    last_valid_key: int | None  # documents with keys up to this one are held out; None holds out none

    def targets(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the targets <int64>[count] of documents: a training shard's number, or ``shards`` for validation."""
        targets = (random_keys(first, count, self.seed, "shard") % np.uint64(self.shards)).astype(np.int64)
        if self.last_valid_key is not None:
            targets[random_keys(first, count, self.seed, "valid") <= np.uint64(self.last_valid_key)] = self.shards
        return targets

    def targets_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the targets <int64>[P] of P paragraphs from their ascending document numbers <int64>[P]."""
        first, last = int(documents[0]), int(documents[-1])
        return self.targets(first, last - first + 1)[documents - first]

    def has_empty_shard(self, documents: int) -> bool:
        """Return whether a training shard gets none of the corpus's documents."""
        filled = np.zeros(self.shards + 1, dtype=np.int64)
        for first in range(0, documents, _BLOCK):
            filled += np.bincount(self.targets(first, min(_BLOCK, documents - first)), minlength=self.shards + 1)
        return not filled[: self.shards].all()


def draw_split(documents: int, valid_documents: int, shards: int, seed: int) -> Split:
    """Hold out exactly ``valid_documents`` (0 ... documents) random documents: those with the smallest keys.

    Memory grows with the number of held-out documents only.
    """
    if valid_documents == 0:
        return Split(seed, shards, None)
    smallest = np.empty(0, dtype=np.uint64)
    for first in range(0, documents, _BLOCK):
        keys = random_keys(first, min(_BLOCK, documents - first), seed, "valid")
        smallest = np.concatenate([smallest, keys])
        if len(smallest) > valid_documents:
            smallest = np.partition(smallest, valid_documents - 1)[:valid_documents]
    return Split(seed, shards, int(smallest.max()))


class Chunk(NamedTuple):
    """A range of whole lines of the cleaned text, the unit in which the encoding step works and resumes."""

    offset: int  # position of the first byte in the cleaned text
    length: int  # number of bytes
    first_document: int  # number of the first paragraph's document
    first_paragraph: int  # number of the first paragraph
    starts_document: bool  # the first paragraph begins its document


class ChunkText(NamedTuple):
    """A chunk's decoded content, P paragraphs."""

    paragraphs: list[str]
    documents: NDArray[np.int64]  # [P] number of each paragraph's document
    starts: NDArray[np.bool_]  # [P] True at the first paragraph of a document


def read_chunk(stream: BinaryIO, chunk: Chunk) -> ChunkText:
    """Read and decode one chunk of the cleaned text."""
    stream.seek(chunk.offset)
    lines = stream.read(chunk.length).decode("utf-8").split("\n")[:-1]
    is_blank = np.fromiter((not line for line in lines), dtype=bool, count=len(lines))
    starts_here = np.concatenate([[chunk.starts_document], is_blank[:-1]])[~is_blank]
    documents = chunk.first_document - int(chunk.starts_document) + np.cumsum(starts_here, dtype=np.int64)
    return ChunkText([line for line in lines if line], documents, starts_here)


class CleanedTextWriter:
    """Write cleaned lines as one text with a blank line between documents; each ``write`` adds at most one chunk."""

    def __init__(self, stream: BinaryIO) -> None:
        self.documents = 0
        self.paragraphs = 0
        self.bytes = 0
        self.chunks: list[Chunk] = []
        self._stream = stream
        self._at_boundary = True

    def write(self, lines: Iterable[bytes]) -> None:
        """Append paragraphs; one or more empty lines end a document, which otherwise continues in the next call."""
        kept: list[bytes] = []
        first_document, first_paragraph, starts_document = 0, self.paragraphs, False
        for line in lines:
            if not line:
                self._at_boundary = True
                continue
            if self._at_boundary:
                self.documents += 1
                if kept:
                    kept.append(b"")
            if not kept:
                first_document, starts_document = self.documents - 1, self._at_boundary
            kept.append(line)
            self.paragraphs += 1
            self._at_boundary = False
        if kept:
            if starts_document and self.chunks:
                self.bytes += self._stream.write(b"\n")
            data = b"\n".join(kept) + b"\n"
            self.chunks.append(Chunk(self.bytes, len(data), first_document, first_paragraph, starts_document))
            self.bytes += self._stream.write(data)


def part_file(folder: Path, number: int) -> Path:
    """Return the part file of chunk ``number``."""
    return folder / f"part{number:06d}.npz"


@dataclass(frozen=True)
class EncodingJob:
    """Everything a worker needs to encode chunks of one cleaned text."""

    cleaned: Path
    parts: Path  # folder of the part files
    split: Split | None  # None sends all documents to target ``shards``, the validation split
    shards: int  # number of shards of the training split
    encoder: TextEncoder

    def encode(self, task: tuple[int, Chunk]) -> int:
        """Encode a task (number, chunk) into the chunk's part file; return the chunk's length in bytes.

        The part holds ``ids<t>``, ``lengths<t>`` and ``counts<t>`` for every target t (a shard or validation) in the
        chunk. A document's first item is a single </s>, for the blank line before the document.
        """
        number, chunk = task
        with open(self.cleaned, "rb") as cleaned:
            text = read_chunk(cleaned, chunk)
        if self.split is None:
            targets = np.full(len(text.paragraphs), self.shards, dtype=np.int64)
        else:
            targets = self.split.targets_of(text.documents)
        arrays: dict[str, NDArray[np.generic]] = {}
        for target in np.unique(targets):
            chosen = np.flatnonzero(targets == target)
            paragraphs = [text.paragraphs[index] for index in chosen]
            ids, lengths, counts = self._encode_target(paragraphs, text.starts[chosen])
            arrays |= {f"ids{target}": ids, f"lengths{target}": lengths, f"counts{target}": counts}
        with atomic_file(part_file(self.parts, number)) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        return chunk.length

    def _encode_target(self, paragraphs: list[str], starts: NDArray[np.bool_]) -> PartArrays:
        batches = range(0, len(paragraphs), _PARAGRAPHS_AT_A_TIME)
        encoded = [self.encoder.encode_flat(paragraphs[begin : begin + _PARAGRAPHS_AT_A_TIME]) for begin in batches]
        ids, lengths = (np.concatenate(arrays) for arrays in zip(*encoded))
        token_starts = np.cumsum(lengths, dtype=np.int64) - lengths
        with_blank_lines = np.insert(ids, token_starts[starts], END_OF_SENTENCE)
        counts = (
            starts.sum(),
            len(paragraphs),
            sum(map(len, paragraphs)),
            sum(len(paragraph.encode("utf-8")) for paragraph in paragraphs),
            len(with_blank_lines),
            (ids == self.encoder.unknown).sum(),
            (lengths == 1).sum(),
            (ids == self.encoder.space).sum(),
        )
        item_lengths = np.insert(lengths, np.flatnonzero(starts), 1)
        return with_blank_lines, item_lengths, np.array(counts, dtype=np.int64)


def read_parts(parts: Iterable[Path], target: int) -> Iterator[PartArrays]:
    """Yield the ids, lengths and counts of one target from the part files that hold it, in order."""
    for part in parts:
        with np.load(part) as arrays:
            if f"ids{target}" in arrays:
                yield arrays[f"ids{target}"], arrays[f"lengths{target}"], arrays[f"counts{target}"]


def write_dataset(
    prefix: Path, parts: Iterable[PartArrays], dtype: type[np.uint16] | type[np.uint32]
) -> dict[str, int]:
    """Write ``prefix``.bin and ``prefix``.idx from the parts of one target, and return its counts.

    The blank line before the first document is dropped: blank lines separate documents. Memory holds one part.
    """
    counts = np.zeros(len(COUNTS), dtype=np.int64)
    items = 0
    with atomic_file(prefix.with_suffix(".bin")) as data, atomic_file(prefix.with_suffix(".idx")) as index:
        index.write(bytes(HEADER.size))
        for number, (ids, lengths, part_counts) in enumerate(parts):
            if number == 0:
                ids, lengths = ids[1:], lengths[1:]
                counts[COUNTS.index("tokens")] -= 1
            data.write(ids.tobytes())
            index.write(lengths.astype("<i4").tobytes())
            items += len(lengths)
            counts += part_counts
        _write_offsets(index, items, np.dtype(dtype).itemsize)
        index.seek(0)
        index.write(HEADER.pack(MAGIC, VERSION, _DTYPE_CODES[np.dtype(dtype)], items))
    return dict(zip(COUNTS, counts.tolist(), strict=True))


def _write_offsets(index: BinaryIO, items: int, item_bytes: int) -> None:
    """Append the byte offset of every item, computed from the lengths that are already in the file."""
    index.flush()
    offset = 0
    with open(index.name, "rb") as written:
        written.seek(HEADER.size)
        for begin in range(0, items, _BLOCK_ITEMS):
            count = min(_BLOCK_ITEMS, items - begin)
            lengths = np.frombuffer(written.read(4 * count), dtype="<i4").astype(np.int64)
            ends = offset + np.cumsum(lengths * item_bytes)
            index.write((ends - lengths * item_bytes).astype("<i8").tobytes())
            offset = int(ends[-1])
