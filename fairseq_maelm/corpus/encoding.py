"""Encoding: chunks of the cleaned text become part files, each with its own items of every split and shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.corpus.chunks import Chunk, read_chunk
from fairseq_maelm.corpus.splitting import Split
from fairseq_maelm.files import atomic_file
from fairseq_maelm.text.vocabulary import END_OF_SENTENCE, UNKNOWN, TextEncoder

COUNTS = ("documents", "paragraphs", "characters", "bytes", "tokens", "unknown_tokens", "paragraphs_without_tokens")

_PARAGRAPHS_AT_A_TIME = 1024


@dataclass(frozen=True)
class EncodingJob:
    """All that a worker needs to know to encode any chunk of one cleaned file.

    Attributes:
        cleaned: the cleaned file.
        parts: the folder for the part files.
        split: where documents go; None sends them all to target ``shards``, the validation split.
        shards: the number of training shards.
        encoder: the vocabulary.
    """

    cleaned: Path
    parts: Path
    split: Split | None
    shards: int
    encoder: TextEncoder

    @staticmethod
    def part_name(number: int) -> str:
        """The name of the part file of chunk ``number``."""
        return f"part{number:06d}.npz"

    def part(self, number: int) -> Path:
        """The part file of chunk ``number``."""
        return self.parts / self.part_name(number)

    def encode(self, task: tuple[int, Chunk]) -> int:
        """Encodes one numbered chunk into its part file and returns the bytes of text done.

        The part holds for every target t that occurs ``ids<t>`` <uint16 or uint32>[tokens], ``lengths<t>``
        <int32>[items] and ``counts<t>`` <int64>[len(COUNTS)]. A document's first item is a lone </s>, its blank line.
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
        with atomic_file(self.part(number)) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        return chunk.length

    def _encode_target(
        self, paragraphs: list[str], starts: NDArray[np.bool_]
    ) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32], NDArray[np.int64]]:
        ids, lengths = [], []
        for begin in range(0, len(paragraphs), _PARAGRAPHS_AT_A_TIME):
            some_ids, some_lengths = self.encoder.encode_flat(paragraphs[begin : begin + _PARAGRAPHS_AT_A_TIME])
            ids.append(some_ids)
            lengths.append(some_lengths)
        all_ids, all_lengths = np.concatenate(ids), np.concatenate(lengths)
        token_starts = np.cumsum(all_lengths, dtype=np.int64) - all_lengths
        with_blank_lines = np.insert(all_ids, token_starts[starts], END_OF_SENTENCE)
        item_lengths = np.insert(all_lengths, np.flatnonzero(starts), 1)
        counts = np.array(
            [
                starts.sum(),
                len(paragraphs),
                sum(map(len, paragraphs)),
                sum(len(paragraph.encode("utf-8")) for paragraph in paragraphs),
                len(with_blank_lines),
                (all_ids == UNKNOWN).sum(),
                (all_lengths == 1).sum(),
            ],
            dtype=np.int64,
        )
        return with_blank_lines, item_lengths, counts


PartArrays = tuple[NDArray[np.generic], NDArray[np.int32], NDArray[np.int64]]


def read_parts(parts: list[Path], target: int) -> Iterator[PartArrays]:
    """Yields ids, lengths and counts of one target from the part files that have any, in order."""
    for part in parts:
        with np.load(part) as arrays:
            if f"ids{target}" in arrays:
                yield arrays[f"ids{target}"], arrays[f"lengths{target}"], arrays[f"counts{target}"]
