"""The folder of a tagging task: words as pieces, labels as numbers, and how the files looked that they came from."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files import atomic_file, write_json
from fairseq_maelm.finetuning.tagging.files import Layout
from fairseq_maelm.finetuning.tagging.schemes import PLAIN
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.vocabulary import UNKNOWN, FairseqEncoder

SETTINGS_FILE = "tagging.json"
# Words encoded at a time; their pieces alone stay in memory.
_WORDS_AT_A_TIME = 100_000


@dataclass(frozen=True)
class TaggingSettings:
    """What a task's folder says of its labels.

    Attributes:
        labels: what the model chooses from; a label's place is its number. Labels that the training file lacks have the
            number after the last.
        scheme: of these labels: "iob1", "iob2", "iobes", or "plain" for labels that are no entities.
        file_scheme: of the files, in which predictions are written.
        layout: of the files.
    """

    labels: tuple[str, ...]
    scheme: str
    file_scheme: str
    layout: Layout

    @property
    def has_entities(self) -> bool:
        """Whether labels are parts of entities, to be scored as entities."""
        return self.scheme != PLAIN


def write_settings(folder: Path, settings: TaggingSettings) -> None:
    """Write the settings into a task's folder."""
    write_json(folder / SETTINGS_FILE, asdict(settings))


def read_settings(folder: Path) -> TaggingSettings:
    """Read the settings of a task's folder.

    Raises:
        FileNotFoundError: the folder was not made by ``maelm prepare-tagging``.
        ValueError: the file is damaged.
    """
    path = folder / SETTINGS_FILE
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give the folder that `maelm prepare-tagging` wrote")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        layout = Layout(**content.pop("layout"))
        return TaggingSettings(tuple(content.pop("labels")), layout=layout, **content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): prepare the task again") from error


@dataclass(frozen=True)
class TaggedSplit:
    """A split in numbers.

    Attributes:
        pieces: <uint16 or uint32>[P] the pieces of all words, in fairseq's dictionary.
        piece_counts: <int32>[W] pieces of each word, at least 1.
        word_counts: <int32>[sentences] words of each sentence, at least 1.
        labels: <int32>[W] numbers of the words' labels.
    """

    pieces: NDArray[np.unsignedinteger]
    piece_counts: NDArray[np.int32]
    word_counts: NDArray[np.int32]
    labels: NDArray[np.int32]

    def save(self, path: Path) -> None:
        """Write the split; the file gets its name when it is whole."""
        with atomic_file(path) as stream:
            np.savez(stream, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "TaggedSplit":
        """Read a split.

        Raises:
            FileNotFoundError: there is no such split.
        """
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {path}: give the folder that `maelm prepare-tagging` wrote, and splits that it was given"
            )
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in ("pieces", "piece_counts", "word_counts", "labels")})


def pieces_of_words(
    encoder: FairseqEncoder, sentences: Sequence[Sequence[str]]
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32], list[tuple[int, int]]]:
    """Encode every word by itself, as a word that begins after a space.

    Returns:
        the pieces <uint16 or uint32>[P] of all words, their number <int32>[W] for each word, and the place (sentence,
        word) of the words of which the vocabulary leaves nothing (control characters alone): these are ``<unk>``, so
        that they too have a label.
    """
    pieces, counts = [], []
    places = [(sentence, word) for sentence, words in enumerate(sentences) for word in range(len(words))]
    for begin in range(0, len(places), _WORDS_AT_A_TIME):
        texts = [clean_text(sentences[sentence][word]) for sentence, word in places[begin : begin + _WORDS_AT_A_TIME]]
        for encoded in encoder.encode(texts):
            own = encoded[:-1] if len(encoded) > 1 else np.array([UNKNOWN], dtype=encoder.dtype)
            pieces.append(own)
            counts.append(len(own) if len(encoded) > 1 else 0)
    lengths = np.array(counts, dtype=np.int32)
    nothing = [places[index] for index in np.flatnonzero(lengths == 0)]
    return np.concatenate(pieces), np.maximum(lengths, 1), nothing


def sentence_slices(split: TaggedSplit) -> Iterator[tuple[slice, slice]]:
    """For every sentence, where its words and where its pieces are."""
    word_ends = np.cumsum(split.word_counts, dtype=np.int64)
    piece_ends = np.concatenate([[0], np.cumsum(split.piece_counts, dtype=np.int64)])
    for start, stop in zip((word_ends - split.word_counts).tolist(), word_ends.tolist()):
        yield slice(start, stop), slice(int(piece_ends[start]), int(piece_ends[stop]))
