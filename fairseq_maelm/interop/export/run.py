"""Export of a checkpoint to a folder for transformers, or to another fairseq checkpoint."""

import json
import logging
import shutil
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.checkpoints.folder import CONFIG_FILE, WEIGHTS_FILE, save_weights
from fairseq_maelm.checkpoints.weight_names import FAMILIES, weights_of_family
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.compare_outputs import Agreement, compare_tokens, verify_model, verify_tokenizer
from fairseq_maelm.interop.export.complete_folder import (
    cast_floats,
    complete_section,
    copy_setup_files,
    rounded,
    rounding_section,
    seal,
    write_checkpoint_files,
)
from fairseq_maelm.interop.export.configuration import configuration
from fairseq_maelm.interop.export.model_card import model_card
from fairseq_maelm.interop.export.settings import ExportSettings
from fairseq_maelm.interop.export.target import Content, choose_content, default_format
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.importing.huggingface_vocabulary import encode_of, open_source_tokenizer
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model

logger = logging.getLogger(__name__)

# The default file name of the hub interface.
CHECKPOINT_FILE = "checkpoint_best.pt"
# The code in folders of the format maelm.
MODEL_CODE = ("configuration_maelm.py", "layers_maelm.py", "modeling_maelm.py")


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    folder: Path
    content: Content | None  # None for a fairseq checkpoint
    agreements: list[Agreement] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # further lines for the user


def export(
    checkpoint: Path, vocabulary: Path | None, output: Path, settings: ExportSettings, replace: bool = False
) -> Export:
    """Export a checkpoint to a new folder, which appears only after its verification.

    Args:
        checkpoint: file of pretraining or fine-tuning.
        vocabulary: folder with dictionary, tokenizer, labels and manifest; None for the folder of the checkpoint.
        output: folder to make.
        settings: options of the export.
        replace: whether to rename an existing folder of this name.

    Raises:
        FileNotFoundError: a file is missing.
        FileExistsError: the folder exists, and ``replace`` is false.
        ValueError: the format cannot represent the model or the vocabulary, or the verification fails.
    """
    with whole_folder(output, "maelm export", replace) as folder:
        source, dtype = (
            load_with_model(checkpoint, vocabulary, settings.averaged_weights),
            getattr(torch, settings.dtype),
        )
        if settings.format == "fairseq":
            return write_checkpoint(source, folder, output)
        if dtype == torch.float16:
            source = rounded(source)
        architecture = "encoder" if settings.complete else settings.architecture
        form = settings.format or default_format(source)
        content = choose_content(source, form, architecture, settings.head, settings.labels)
        kept = source.source_files if form == source.imported_as else None
        # A complete folder has our ids, as its checkpoint. Heads were trained with our separators between two texts.
        if kept is not None and content.head is None and not settings.complete:
            content = replace_fields(content, kept=kept)
        logger.info("exporting %s as %s", checkpoint, content.class_name)
        if settings.complete:
            copy_setup_files(source, folder)
        write_model(source, content, folder, dtype)
        differences = write_tokenizer(source, content, folder)
        agreements = verify_model(source, content, folder)
        name = settings.name or output.name
        more = [rounding_section()] * (dtype == torch.float16) + [complete_section(source, name)] * settings.complete
        card = model_card(source, content, name, settings.license, agreements, differences, more=more)
        (folder / "README.md").write_text(card, encoding="utf-8")
        if settings.complete:
            write_checkpoint_files(source, folder, dtype)
            seal(source, folder)
    remarks = [f"tokenizer: {ascii(text)} is tokenized differently ({why})" for text, why in differences.items()]
    return Export(output, content, agreements, [*remarks, f"{output}: {content.class_name}, verified"])


def write_checkpoint(source: LoadedCheckpoint, folder: Path, output: Path) -> Export:
    """Write a checkpoint without the optimizer's state, and the files that its task reads.

    The result has the name ``output``, which the folder gets later.
    """
    checkpoint = source.checkpoint
    state = {name: value for name, value in checkpoint.state.items() if name != "last_optimizer_state"}
    extra = state.get("extra_state") or {}
    state["extra_state"] = {name: value for name, value in extra.items() if not name.startswith("ema")}
    torch.save({**state, "model": checkpoint.weights}, folder / CHECKPOINT_FILE)
    copy_setup_files(source, folder)
    load_with_model(folder / CHECKPOINT_FILE)
    return Export(output, None, remarks=[str(output / CHECKPOINT_FILE)])


def write_tokenizer(source: LoadedCheckpoint, content: Content, folder: Path) -> dict[str, str]:
    """Write the tokenizer's files, and return the texts of ``MAY_DIFFER`` that do differ, with the reason.

    The source's own files are byte for byte those of the import.
    """
    if content.kept is not None:
        for name in content.kept.files.keys() - {CONFIG_FILE}:
            (folder / name).write_bytes(content.kept.files[name])
        theirs = encode_of(open_source_tokenizer(folder))
        compare_tokens(folder, theirs, source.tokenizer.encode, content.kept.order.tolist())
        return {}
    tokenizer = build_tokenizer(source.tokenizer_file, source.dictionary)
    for name, text in tokenizer_files(tokenizer, source.model.max_positions()).items():
        (folder / name).write_text(text, encoding="utf-8")
    return verify_tokenizer(source, folder)


def write_model(source: LoadedCheckpoint, content: Content, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write config.json, the weights in a data type, and for the format "maelm" the model's code."""
    settings = configuration(source, content)
    # Version 5 of transformers would compute in the weights' data type.
    data_types = {name for name in ("dtype", "torch_dtype") if name in settings}
    if dtype != torch.float32 or any(settings[name] != "float32" for name in data_types):
        settings |= dict.fromkeys(data_types or ["dtype"], "float32")
    if content.kept is not None and settings == content.kept.config:
        (folder / CONFIG_FILE).write_bytes(content.kept.files[CONFIG_FILE])
    else:
        (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_weights(cast_floats(model_weights(source, content), dtype), folder / WEIGHTS_FILE)
    if content.format == "maelm":
        for name in MODEL_CODE:
            shutil.copyfile(Path(__file__).parents[2] / "hf" / name, folder / name)


def model_weights(source: LoadedCheckpoint, content: Content) -> dict[str, Tensor]:
    """Return the weights of a folder, <float32>, by their names in it."""
    state: dict[str, Any] = source.model.state_dict()
    family, width = FAMILIES[content.format], source.options.encoder_embed_dim
    weights = weights_of_family(state, family, source.options, content.architecture, content.head)
    if family.token_types:
        prefix = "" if content.architecture == "encoder" else family.prefix
        weights[f"{prefix}embeddings.token_type_embeddings.weight"] = torch.zeros(family.token_types, width)
    if family.has_pooler and content.format != "maelm" and content.architecture == "encoder":
        # Stock encoders have a pooler, and ours does not; this one is tanh alone.
        weights |= {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}
    if content.kept is not None:
        weights = content.kept.restore(weights, family, source.model.max_positions())
    return weights
