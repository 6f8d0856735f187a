"""A tagging task's folder: token ids, label ids, and the layout of the original files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_maelm.files.conll import Layout
from fairseq_maelm.files.prepared_folder import read_manifest
from fairseq_maelm.finetuning.tagging.schemes import PLAIN
from fairseq_maelm.text.cleaning import clean_text
from fairseq_maelm.text.vocabulary import UNKNOWN, TextEncoder

# A character of a script without spaces (Thai to Lao, Burmese, Khmer, kana, Han) and what varies its form; and a run.
_UNSPACED = (
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff][\ufe00-\ufe0f\U000e0100-\U000e01ef]*"
)
UNSPACED, UNSPACED_RUN = re.compile(_UNSPACED), re.compile(f"(?:{_UNSPACED})+")


@dataclass(frozen=True)
class TaggingSettings:
    """A task's labels; label id ``len(labels)`` stands for all labels that are not in the training file."""

    labels: tuple[str, ...]  # the model's labels, in the order of their ids
    scheme: str  # scheme of ``labels``: one of ``schemes.PREFIXES``, or "plain" for other labels than entities
    file_scheme: str  # scheme of the files and of predictions
    layout: Layout  # layout of the files
    longest_unspaced: int = (
        0  # the most characters of ``UNSPACED`` that follow each other in a word of the training file
    )

    @property
    def has_entities(self) -> bool:
        """True if the labels mark entities."""
        return self.scheme != PLAIN


def read_settings(folder: Path) -> TaggingSettings:
    """Read the settings of a task's folder; raises the errors of ``read_manifest``."""
    content = read_manifest(folder, "tagging")["tagging"]
    layout = Layout(**content["layout"])
    return TaggingSettings(**{**content, "labels": tuple(content["labels"]), "layout": layout})


class TaggedSplit(NamedTuple):
    """A split of W words and P pieces, as token ids and label ids."""

    pieces: NDArray[np.unsignedinteger]  # <uint16 or uint32>[P] of all words
    piece_counts: NDArray[np.int32]  # [W] pieces of each word, at least 1
    word_counts: NDArray[np.int32]  # [sentences] words of each sentence, at least 1
    labels: NDArray[np.int32]  # [W]


def encode_words(
    encoder: TextEncoder, sentences: Sequence[Sequence[str]], labels: Sequence[int] | None = None
) -> tuple[TaggedSplit, NDArray[np.int64]]:
    """Tokenize each word separately, as if it followed a space.

    Returns:
        the split, whose label ids are 0 if ``labels`` is None; and the indices of words that consist of control
        characters: these have no pieces, so they become ``<unk>`` and get a label like other words.
    """
    words = [clean_text(word) for words in sentences for word in words]
    pieces, lengths = encoder.encode_flat([encoder.word_prefix + word if word else "" for word in words])
    ends, counts = np.cumsum(lengths, dtype=np.int64) - 1, lengths - 1
    kept = np.ones(len(pieces), dtype=bool)
    kept[ends[counts > 0]] = False
    # An empty word consists of its end symbol.
    pieces[ends[counts == 0]] = UNKNOWN
    word_counts = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
    numbers = np.zeros(len(words), dtype=np.int32) if labels is None else np.array(labels, dtype=np.int32)
    return TaggedSplit(pieces[kept], np.maximum(counts, 1), word_counts, numbers), np.flatnonzero(counts == 0)
