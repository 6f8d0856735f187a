"""Export a checkpoint to a transformers folder or to another fairseq checkpoint."""

import json
import logging
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path

import torch
from torch import Tensor

from fairseq_maelm.architecture.families import FAMILIES, weights_of_family
from fairseq_maelm.checkpoints.folder import CONFIG_FILE, WEIGHTS_FILE, save_weights
from fairseq_maelm.files.atomic import copy_file
from fairseq_maelm.files.prepared_folder import whole_folder
from fairseq_maelm.interop.compare_outputs import Agreement, compare_tokens, verify_model, verify_tokenizer
from fairseq_maelm.interop.configuration import configuration
from fairseq_maelm.interop.export.changed_weights import (
    cast_floats,
    in_units_of_data,
    measure,
    mixed,
    mixing_section,
    rounded,
    without_decoder,
)
from fairseq_maelm.interop.export.complete_folder import (
    ROUNDING,
    complete,
    complete_section,
    copy_setup_files,
)
from fairseq_maelm.interop.export.fairseq_roberta import CHECKPOINT_FILE as ROBERTA_FILE
from fairseq_maelm.interop.export.fairseq_roberta import write_roberta
from fairseq_maelm.interop.export.formats import FAIRSEQ_ROBERTA, MODEL_CODE, OUR_FORMAT, ExportSettings
from fairseq_maelm.interop.export.model_card import CARD_OF_SOURCE, compared, model_card, training_section
from fairseq_maelm.interop.export.sentence_modules import write_modules
from fairseq_maelm.interop.export.target import Target, choose_target, default_format
from fairseq_maelm.interop.export.tokenizer import build_tokenizer, tokenizer_files
from fairseq_maelm.interop.importing.huggingface_vocabulary import (
    encode_of,
    markers,
    open_source_tokenizer,
    texts_of_tokens,
)
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint, load_with_model
from fairseq_maelm.interop.source_files import FACTS_FILE, SOURCE_CARD
from fairseq_maelm.interop.tokenizer_test_strings import SPECIAL_STRING, WHY_SPECIAL
from fairseq_maelm.modules.finetuning_heads import POOLING
from fairseq_maelm.text.vocabulary import FAIRSEQ_SYMBOLS

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint_best.pt"  # the default file name of the hub interface
CARD_FILE = "README.md"
DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    folder: Path
    target: Target | None  # None for a fairseq checkpoint
    agreements: list[Agreement] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # further lines for the user


def export(
    checkpoint: Path, vocabulary: Path | None, output: Path, settings: ExportSettings, replace: bool = False
) -> Export:
    """Export a checkpoint to a new folder, which appears only after its verification.

    ``vocabulary`` is the folder with dictionary, tokenizer, labels and manifest; None for the folder of the checkpoint.
    With ``replace``, an existing folder ``output`` is renamed, and otherwise refused. A ValueError says that the format
    cannot represent the model or the vocabulary, or that the verification fails.
    """
    with whole_folder(output, "maelm export", replace) as folder:
        source = load_with_model(checkpoint, vocabulary, settings.averaged_weights)
        if settings.mix is not None:
            source = mixed(source, settings.mix)
        if settings.format == "fairseq":
            return write_checkpoint(source, folder, output)
        if not settings.complete:
            source = in_units_of_data(source)
        if DTYPES[settings.dtype] == torch.float16:
            source = rounded(source)
        remarks, trained = [], source
        if settings.with_mlm_head:
            source = without_decoder(trained)
            remarks = [measure(trained, source)]
        if settings.format == FAIRSEQ_ROBERTA:
            copy_setup_files(source, folder)
            remarks.append(f"{output / ROBERTA_FILE}: fairseq's roberta, verified")
            return Export(output, None, write_roberta(source, folder), remarks)
        return _for_transformers(source, settings, folder, output, remarks)


def _for_transformers(
    source: LoadedCheckpoint, settings: ExportSettings, folder: Path, output: Path, remarks: list[str]
) -> Export:
    """Write and verify a folder for transformers, later renamed to ``output``, with a card that has the remarks."""
    target, dtype = _choose(source, settings), DTYPES[settings.dtype]
    logger.info("exporting %s as %s", source.checkpoint.path, target.description)
    if settings.complete:
        copy_setup_files(source, folder)
    write_model(source, target, folder, dtype)
    differences = write_tokenizer(source, target, folder)
    agreements = verify_model(source, target, folder)
    name = settings.name or output.name
    exactness = [
        *compared(agreements, "the checkpoint"),
        f"tokenizer: the ids of {source.tokenizer_file.name} and dict.txt, for hard texts and every piece",
        *(f"tokenized differently (known): {ascii(text)}: {why}" for text, why in differences.items()),
        *remarks,
    ]
    sections = [mixing_section(settings.mix)] if settings.mix is not None else []
    sections += [ROUNDING] * (dtype == torch.float16) + [complete_section(source, name)] * settings.complete
    card = model_card(source, target, name, settings.license, training_section(source), exactness, sections)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    if source.origin is not None and SOURCE_CARD in source.origin.files:
        (folder / CARD_OF_SOURCE).write_bytes(source.origin.files[SOURCE_CARD])
    if settings.complete:
        complete(source, folder, dtype)
    remarks += [f"tokenizer: {ascii(text)} is tokenized differently ({why})" for text, why in differences.items()]
    return Export(output, target, agreements, [*remarks, f"{output}: {target.description}, verified"])


def _choose(source: LoadedCheckpoint, settings: ExportSettings) -> Target:
    architecture = "encoder" if settings.complete else "masked-lm" if settings.with_mlm_head else settings.architecture
    form = settings.format or default_format(source)
    target = choose_target(source, form, architecture, settings.head, settings.labels)
    kept = source.source_files if form == source.imported_as else None
    if kept is not None and DTYPES[settings.dtype] == torch.float16:
        kept = kept.with_type_0_in_positions()
    # A complete folder has our ids, as its checkpoint. Heads of fine-tuning were trained with our separators between
    # two texts, and heads of the source with its own.
    ours = settings.complete or (target.head is not None and not source.imported_head)
    if source.imported_head and target.head is not None and kept is None:
        logger.warning(
            "the head came with the imported model, but --format %s joins two texts by other separators: scores of "
            "single texts are equal to that model's, those of pairs are not",
            form,
        )
    return target if kept is None or ours else replace_fields(target, kept=kept)


def write_checkpoint(source: LoadedCheckpoint, folder: Path, output: Path) -> Export:
    """Write a checkpoint without optimizer state, and the files that its task reads.

    The files are written to ``folder``, which is later renamed to ``output``; the result refers to ``output``.
    """
    checkpoint = source.checkpoint
    state = {name: value for name, value in checkpoint.state.items() if name != "last_optimizer_state"}
    extra = state.get("extra_state") or {}
    state["extra_state"] = {name: value for name, value in extra.items() if not name.startswith("ema")}
    torch.save({**state, "model": checkpoint.weights}, folder / CHECKPOINT_FILE)
    copy_setup_files(source, folder)
    load_with_model(folder / CHECKPOINT_FILE)
    return Export(output, None, remarks=[str(output / CHECKPOINT_FILE)])


def write_tokenizer(source: LoadedCheckpoint, target: Target, folder: Path) -> dict[str, str]:
    """Write the tokenizer's files, unchanged for an imported model; return texts that get other tokens -> reason."""
    if target.kept is not None:
        for name in target.kept.files.keys() - {CONFIG_FILE, FACTS_FILE, SOURCE_CARD}:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(target.kept.files[name])
        tokenizer, order = open_source_tokenizer(folder), target.kept.order.tolist()
        added = markers(tokenizer, [*order[: len(FAIRSEQ_SYMBOLS)], order[-1]])
        own = texts_of_tokens(tokenizer)
        compare_tokens(folder, encode_of(tokenizer), source.tokenizer.encode, order, added, own)
        # The source's files are kept, so that its tokenizer cannot be told to read special tokens as text.
        return {SPECIAL_STRING.format(*map(tokenizer.id_to_token, order[: len(FAIRSEQ_SYMBOLS)])): WHY_SPECIAL}
    # Our taggers read each word as if it followed a space; the source's own read text as its tokenizer does.
    words = target.architecture == "token-classification" and not source.imported_head
    tokenizer = build_tokenizer(source.tokenizer_file, source.dictionary, words)
    split = target.architecture != "masked-lm"
    for name, text in tokenizer_files(tokenizer, source.limits(target.head).tokens, split).items():
        (folder / name).write_text(text, encoding="utf-8")
    return verify_tokenizer(source, folder, words)


def write_model(source: LoadedCheckpoint, target: Target, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write config.json, the weights cast to ``dtype``, modules after the encoder and the code of our own format."""
    settings = configuration(source, target)
    # Version 5 of transformers would compute in the weights' data type.
    data_types = {name for name in ("dtype", "torch_dtype") if name in settings}
    if dtype != torch.float32 or any(settings[name] != "float32" for name in data_types):
        settings |= dict.fromkeys(data_types or ["dtype"], "float32")
    if target.kept is not None and settings == target.kept.config:
        (folder / CONFIG_FILE).write_bytes(target.kept.files[CONFIG_FILE])
    else:
        (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_weights(cast_floats(model_weights(source, target), dtype), folder / WEIGHTS_FILE)
    if target.modules:
        write_modules(source.model.classification_heads[str(target.head)], folder, dtype)
    for name in MODEL_CODE if target.format == OUR_FORMAT else ():
        copy_file(Path(__file__).parents[2] / "hf" / name, folder / name)


def model_weights(source: LoadedCheckpoint, target: Target) -> dict[str, Tensor]:
    """Return an export's weights <float32> under the names of its format."""
    # The name of a head's dense layer says what the head reads; formats say it in config.json.
    mean, first = (f"classification_heads.{target.head}.{POOLING[pooling]}." for pooling in ("mean", "first"))
    state = {name.replace(mean, first): weight for name, weight in source.model.state_dict().items()}
    family, width = FAMILIES[target.format], source.options.encoder_embed_dim
    weights = weights_of_family(state, family, source.options, target.architecture, target.head)
    if family.token_types:
        prefix = "" if target.architecture == "encoder" else family.prefix
        weights[f"{prefix}embeddings.token_type_embeddings.weight"] = torch.zeros(family.token_types, width)
    if family.has_pooler and target.format != OUR_FORMAT and target.architecture == "encoder":
        # Stock encoders have a pooler, and ours does not; this one is tanh alone.
        weights |= {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}
    if target.kept is not None:
        weights = target.kept.restore(weights, family, source.model.max_positions())
    return weights
