"""A checkpoint as the export reads it, and the import reads back what it wrote: model, vocabulary, history."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_maelm.models.checkpoint_model import build_model
from fairseq_maelm.models.checkpoint_reader import Checkpoint, read_checkpoint
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer


@dataclass(frozen=True)
class Source:
    """What is exported.

    Attributes:
        checkpoint: as it was read.
        model: on the CPU, in single precision, in evaluation mode, with the heads that the checkpoint has.
        dictionary: fairseq's, with ``<mask>``.
        data: the folder in which labels and the manifest are looked for.
    """

    checkpoint: Checkpoint
    model: MaelmModel
    dictionary: Dictionary
    data: Path

    @property
    def options(self) -> Any:
        """Return the options of the model, all of them filled in."""
        return self.checkpoint.config["model"]

    @property
    def tokenizer_file(self) -> Path:
        """Return the file of the sentencepiece model, or of the imported tokenizer."""
        return Path(find_tokenizer(str(self.checkpoint.path.parent), str(self.data)))

    @property
    def tokenizer(self) -> TextTokenizer:
        """Return what turns text into tokens, as in the hub interface."""
        return open_tokenizer(str(self.tokenizer_file), self.dictionary)


def load_source(checkpoint: Path, vocabulary: Path | None = None, averaged: bool = False) -> Source:
    """Read a checkpoint of pretraining or fine-tuning, by default with the vocabulary in its own folder.

    Raises:
        FileNotFoundError: the checkpoint or the dictionary is missing.
        ValueError: the checkpoint is not one of the model maelm, or belongs to another vocabulary.
    """
    data = vocabulary or checkpoint.parent
    content = read_checkpoint(checkpoint, averaged=averaged)
    dictionary = load_dictionary(str(find_dictionary([data, checkpoint.parent])))
    return Source(content, build_model(content, dictionary), dictionary, data)
