"""A checkpoint as the export reads it: the model with its heads, the vocabulary, and how it was trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary

from fairseq_maelm.data.encoder_view import EncoderView
from fairseq_maelm.models.checkpoint_model import build_model
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.models.vocabulary_folder import find_dictionary, find_tokenizer
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.tokenizer import TextTokenizer, open_tokenizer


@dataclass(frozen=True)
class Source:
    """What is exported.

    Attributes:
        checkpoint: the file.
        model: on the CPU, in single precision, in evaluation mode, with the heads that the checkpoint has.
        dictionary: fairseq's, with ``<mask>``.
        tokenizer_file: the sentencepiece model, or the imported tokenizer.json.
        data: the data folder, where labels and the manifest are looked for.
        config: the checkpoint's whole fairseq configuration.
        view: what the encoder saw in pretraining.
        history: ``num_updates``, ``epoch``, and what else the checkpoint says of its training.
        manifest: what ``maelm prepare corpus`` wrote about the data, or None.
    """

    checkpoint: Path
    model: MaelmModel
    dictionary: Dictionary
    tokenizer_file: Path
    data: Path
    config: Any
    view: EncoderView
    history: dict[str, Any]
    manifest: Optional[dict[str, Any]]

    @property
    def task_name(self) -> str:
        """The registered name of the task that the checkpoint was trained on."""
        return str(getattr(self.config["task"], "_name", ""))

    @property
    def tokenizer(self) -> TextTokenizer:
        """Text to tokens as the hub interface does it."""
        return open_tokenizer(str(self.tokenizer_file), self.dictionary)


def load_source(checkpoint: Path, data: Optional[Path] = None) -> Source:
    """Read a checkpoint of pretraining or fine-tuning.

    Args:
        checkpoint: the file.
        data: the prepared data, or the folder of the fine-tuning task's data; by default the checkpoint's own folder.

    Raises:
        FileNotFoundError: if the checkpoint, the dictionary or the tokenizer is missing.
        ValueError: if the checkpoint is not one of the model maelm or belongs to another vocabulary.
    """
    data = data or checkpoint.parent
    content = read_checkpoint(checkpoint)
    dictionary = load_dictionary(str(find_dictionary([data, checkpoint.parent])))
    return Source(
        checkpoint=checkpoint,
        model=build_model(content, dictionary),
        dictionary=dictionary,
        tokenizer_file=Path(find_tokenizer(str(checkpoint.parent), str(data))),
        data=data,
        config=content.config,
        view=content.view,
        history=content.history,
        manifest=_manifest(data),
    )


def _manifest(data: Path) -> Optional[dict[str, Any]]:
    path = data / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
