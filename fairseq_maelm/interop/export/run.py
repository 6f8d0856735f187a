"""From a checkpoint to a folder of Hugging Face."""

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from torch import Tensor

from fairseq_maelm.interop.agreement import Agreement
from fairseq_maelm.interop.export.card import model_card
from fairseq_maelm.interop.export.configuration import Content, configuration
from fairseq_maelm.interop.export.content import choose_content
from fairseq_maelm.interop.export.sentence_vectors import verify_sentence_vectors, write_sentence_vectors
from fairseq_maelm.interop.export.source import Source, load_source
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.export.verification import verify_model, verify_tokenizer
from fairseq_maelm.interop.export.weights import encoder_weights, head_weights, masked_lm_weights, pooler_weights
from fairseq_maelm.prepared_folder import whole_folder

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
# What an exported folder holds of this package, for machines without it.
MODEL_CODE = ("configuration_maelm.py", "layers_maelm.py", "modeling_maelm.py")


@dataclass(frozen=True)
class ExportSettings:
    """What to export, and how the folder describes it.

    Attributes:
        form: "mpnet", "maelm" or "onnx".
        architecture: see ``choose_content``.
        head: see ``choose_content``.
        labels: see ``choose_content``.
        name: of the model, in its card; the folder's by default.
        license: SPDX identifier for the card; None leaves the field to be filled in.
        replace: rename a folder that is in the way.
        int8: of "onnx": write a file in 8 bits too, and measure what it loses.
        texts: of "onnx": a file with texts for this measurement, one a line; bundled ones otherwise.
    """

    form: str
    architecture: Optional[str] = None
    head: Optional[str] = None
    labels: Optional[Path] = None
    name: Optional[str] = None
    license: Optional[str] = None
    replace: bool = False
    int8: bool = False
    texts: Optional[Path] = None

    def __post_init__(self) -> None:
        if self.form != "onnx" and (self.int8 or self.texts is not None):
            raise ValueError(f"--int8 and --texts are for --format onnx, not {self.form}")
        if self.texts is not None and not self.int8:
            raise ValueError("--texts are for measuring what 8 bits lose: give --int8 as well")


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        folder: where it is.
        content: what it holds.
        agreements: with the checkpoint.
        remarks: what else is to be said, a line each.
    """

    folder: Path
    content: Content
    agreements: list[Agreement]
    remarks: list[str]


def export(checkpoint: Path, data: Optional[Path], output: Path, settings: ExportSettings) -> Export:
    """Export a checkpoint, verified: the folder appears when both sides have computed the same.

    Args:
        checkpoint: of pretraining or fine-tuning.
        data: prepared data, or the data folder of fine-tuning: dictionary, tokenizer, labels, manifest; None for the
            folder of the checkpoint.
        output: the folder to make.
        settings: what to export.

    Raises:
        FileNotFoundError: if a file is missing.
        FileExistsError: if the folder exists and is not to be replaced.
        ValueError: if the format cannot hold the model or the vocabulary, or the verification fails.
    """
    with whole_folder(output, "maelm export", settings.replace) as folder:
        source = load_source(checkpoint, data)
        content = choose_content(source, settings.form, settings.architecture, settings.head, settings.labels)
        logger.info("exporting %s as %s", checkpoint, content.class_name)
        write_model(source, content, folder)
        write_sentence_vectors(source, content, folder)
        differences = write_tokenizer(source, folder)
        agreements = verify_model(source, content, folder) + verify_sentence_vectors(source, content, folder)
        card = model_card(source, content, settings.name or output.name, settings.license, agreements, differences)
        (folder / "README.md").write_text(card, encoding="utf-8")
    remarks = [f"tokenizer: {ascii(text)} is known to be read differently ({why})" for text, why in differences.items()]
    return Export(output, content, agreements, [*remarks, f"{output}: {content.class_name}, verified"])


def write_tokenizer(source: Source, folder: Path, makes_batches: bool = False) -> dict[str, str]:
    """Write the tokenizer's files and compare what they read with fairseq.

    Args:
        source: the checkpoint.
        folder: of the export, as yet without tokenizer.
        makes_batches: let tokenizer.json cut and pad by itself, for programs without transformers.

    Returns:
        the listed texts that are read differently, with the reason.
    """
    tokenizer, positions = build_tokenizer(source.tokenizer_file, source.dictionary), source.model.max_positions()
    if makes_batches:
        pad = source.dictionary.pad()
        tokenizer.enable_padding(pad_id=pad, pad_token=tokenizer.id_to_token(pad))
        tokenizer.enable_truncation(positions)
    for name, text in tokenizer_files(tokenizer, positions).items():
        (folder / name).write_text(text, encoding="utf-8")
    return verify_tokenizer(source, folder)


def write_model(source: Source, content: Content, folder: Path) -> None:
    """Write config.json, the weights, and for the format "maelm" the code of the model."""
    from safetensors.torch import save_file

    settings = json.dumps(configuration(source, content), indent=2) + "\n"
    (folder / "config.json").write_text(settings, encoding="utf-8")
    save_file(model_weights(source, content), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    if content.form == "maelm":
        _copy(Path(__file__).parents[2] / "hf", MODEL_CODE, folder)


def model_weights(source: Source, content: Content) -> dict[str, Tensor]:
    """The weights of a folder under their names there, <float32>."""
    state: dict[str, Any] = source.model.state_dict()
    if content.architecture == "masked-lm":
        return masked_lm_weights(state)
    if content.head is not None:
        return head_weights(state, content.head, content.architecture)
    if content.form == "maelm":
        return encoder_weights(state)
    return {**encoder_weights(state), **pooler_weights(source.config["model"].encoder_embed_dim)}


def _copy(source: Path, names: Iterable[str], target: Path) -> None:
    for name in names:
        shutil.copyfile(source / name, target / name)
