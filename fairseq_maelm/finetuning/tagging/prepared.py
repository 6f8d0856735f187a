"""The folder of a tagging task: words as pieces, labels as numbers, and how the files looked that they came from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.data.stored import read_arrays
from fairseq_maelm.files import atomic_file
from fairseq_maelm.finetuning.tagging.schemes import PLAIN
from fairseq_maelm.labeled_words import Layout
from fairseq_maelm.prepared_folder import read_manifest
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.vocabulary import UNKNOWN, TextEncoder


@dataclass(frozen=True)
class TaggingSettings:
    """What a task's folder says of its labels."""

    # What the model chooses from; a label's place is its number. Labels that the training file lacks have the number
    # after the last.
    labels: tuple[str, ...]
    scheme: str  # of these labels: "iob1", "iob2", "iobes", or "plain" for labels that are no entities
    file_scheme: str  # of the files, in which predictions are written
    layout: Layout  # of the files

    @property
    def has_entities(self) -> bool:
        """Whether labels are parts of entities, to be scored as entities."""
        return self.scheme != PLAIN


def read_settings(folder: Path) -> TaggingSettings:
    """Read the settings of a task's folder.

    Raises:
        FileNotFoundError: the folder was not made by ``maelm prepare tagging``.
        ValueError: another version made it, or its manifest is damaged.
    """
    content = read_manifest(folder, "tagging")["tagging"]
    layout = Layout(**content["layout"])
    return TaggingSettings(tuple(content["labels"]), content["scheme"], content["file_scheme"], layout)


@dataclass(frozen=True)
class TaggedSplit:
    """A split in numbers, W words of P pieces; numbers are those of fairseq's dictionary and of the labels."""

    pieces: NDArray[np.unsignedinteger]  # <uint16 or uint32>[P] of all words
    piece_counts: NDArray[np.int32]  # [W] pieces of each word, at least 1
    word_counts: NDArray[np.int32]  # [sentences] words of each sentence, at least 1
    labels: NDArray[np.int32]  # [W]

    def save(self, path: Path) -> None:
        """Write the split; the file gets its name when it is whole."""
        with atomic_file(path) as stream:
            np.savez(stream, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "TaggedSplit":
        """Read a split."""
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {path}: give the folder that `maelm prepare tagging` wrote, and splits that it was given"
            )
        return cls(**read_arrays(path))


def encode_words(
    encoder: TextEncoder, sentences: Sequence[Sequence[str]], labels: Sequence[int] | None = None
) -> tuple[TaggedSplit, NDArray[np.int64]]:
    """Encode every word by itself, as a word that begins after a space.

    Returns:
        the split, with labels of 0 where none are given; and the places of the words of which the vocabulary leaves
        nothing (control characters alone): these are ``<unk>``, so that they too have a label.
    """
    words = [clean_text(word) for words in sentences for word in words]
    pieces, lengths = encoder.encode_flat([encoder.word_prefix + word if word else "" for word in words])
    ends, counts = np.cumsum(lengths, dtype=np.int64) - 1, lengths - 1
    kept = np.ones(len(pieces), dtype=bool)
    kept[ends[counts > 0]] = False
    # Of an empty word there is the end symbol alone.
    pieces[ends[counts == 0]] = UNKNOWN
    word_counts = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
    numbers = np.zeros(len(words), dtype=np.int32) if labels is None else np.array(labels, dtype=np.int32)
    return TaggedSplit(pieces[kept], np.maximum(counts, 1), word_counts, numbers), np.flatnonzero(counts == 0)
