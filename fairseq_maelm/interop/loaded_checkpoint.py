"""Load a checkpoint with its model and vocabulary, to export it or to verify an import."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_maelm.checkpoints.reader import Checkpoint, read_checkpoint
from fairseq_maelm.interop.source_files import SourceFiles, read_source_files
from fairseq_maelm.models.build import build_model
from fairseq_maelm.models.labels import Labels, read_labels
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.text_limits import TextLimits, read_limits
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer
from fairseq_maelm.text.vocabulary import MASK_SYMBOL


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint, its model and its vocabulary."""

    checkpoint: Checkpoint
    model: MaelmModel  # on the CPU, in single precision and evaluation mode, with the checkpoint's heads
    dictionary: Dictionary  # with ``<mask>``
    data: Path  # folder of the labels and the manifest

    def changed(self, weights: dict[str, Tensor], config: Any = None) -> "LoadedCheckpoint":
        """Return the checkpoint with other weights and, if given, another configuration."""
        checkpoint = replace(self.checkpoint, weights=weights, config=config or self.checkpoint.config)
        return replace(self, checkpoint=checkpoint, model=build_model(checkpoint, self.dictionary))

    @property
    def options(self) -> Any:
        """All options of the model."""
        return self.checkpoint.config["model"]

    @property
    def tokenizer_file(self) -> Path:
        """The path of the sentencepiece model or of the imported tokenizer.json."""
        return find_tokenizer([self.data, self.checkpoint.path.parent])

    @cached_property
    def labels(self) -> Labels | None:
        """What the outputs of the task's head stand for."""
        return read_labels(self.checkpoint.config, [self.data, self.checkpoint.path.parent])

    def limits(self, head: str | None) -> TextLimits:
        """Return the limits of texts: those of training for a head, and the model's for the encoder alone."""
        positions = self.model.max_positions()
        return TextLimits(positions) if head is None else read_limits(self.checkpoint.config, positions)

    @property
    def imported_as(self) -> str:
        """The model type of the imported encoder, such as "roberta"; "none" if it was not imported."""
        config = self.options
        return str(config.imported_as)

    @cached_property
    def origin(self) -> SourceFiles | None:
        """What is kept of the imported model; None without an import, or if the vocabulary has been replaced."""
        folders = [self.data, self.checkpoint.path.parent]
        return read_source_files(
            [place for folder in folders for place in (folder, folder / "input0")], self.checkpoint.vocabulary
        )

    @property
    def source_files(self) -> SourceFiles | None:
        """The same, for a model that can be given back as a folder for transformers."""
        kept = self.origin
        return kept if kept is not None and kept.config.get("model_type") == self.imported_as else None

    @property
    def imported_head(self) -> str:
        """The transformers class of the source, if the checkpoint has the source's fine-tuned head; otherwise ""."""
        # Fine-tuning has other tasks, and pretraining has no heads.
        files = self.source_files if self.checkpoint.heads and self.checkpoint.task_name == "maelm" else None
        return "" if files is None else str(files.config["architectures"][0])

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the hub interface."""
        return open_tokenizer(self.tokenizer_file, self.dictionary)

    @property
    def mask_text(self) -> str:
        """The mask symbol in the tokenizer's spelling; also defined for fairseq checkpoints without a tokenizer."""
        try:
            return self.tokenizer.mask_text
        except FileNotFoundError:
            return MASK_SYMBOL


def load_with_model(checkpoint: Path, vocabulary: Path | None = None, averaged: bool = False) -> LoadedCheckpoint:
    """Read a checkpoint of pretraining or fine-tuning, by default with the vocabulary in its folder."""
    data = vocabulary or checkpoint.parent
    content = read_checkpoint(checkpoint, averaged=averaged)
    dictionary = load_dictionary(str(find_dictionary([data, checkpoint.parent])))
    return LoadedCheckpoint(content, build_model(content, dictionary), dictionary, data)
