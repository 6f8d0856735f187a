"""Import Hugging Face folders with the architecture of BERT, RoBERTa, MPNet or ModernBERT."""

import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.architecture.families import FAMILIES, Family, take_weights
from fairseq_maelm.checkpoints.plain_data import check_weights, load_plain
from fairseq_maelm.files.atomic import read_json, refuse_special_files, sha256_of
from fairseq_maelm.files.optional_imports import import_transformers
from fairseq_maelm.interop.compare_outputs import Computation, move_type_0_to_positions, quiet, transformers_outputs
from fairseq_maelm.interop.configuration import (
    model_options,
    padding,
    position_offset,
    read_config,
)
from fairseq_maelm.interop.export.formats import ARCHITECTURES, AUTO_CLASSES, OUR_FORMAT
from fairseq_maelm.interop.importing.huggingface_vocabulary import read_vocabulary
from fairseq_maelm.interop.importing.source import Source, refuse, without_prefix
from fairseq_maelm.interop.importing.symbols import readable_folder
from fairseq_maelm.interop.source_files import kept_files, kept_weights
from fairseq_maelm.modules.finetuning_heads import POOLING

logger = logging.getLogger(__name__)

_WEIGHT_FILES = tuple(
    name + ending for name in ("model.safetensors", "pytorch_model.bin") for ending in ("", ".index.json")
)
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
# Buffers that old versions saved, and what masked language models do not use: the pooler.
_NOT_NEEDED = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
# Heads of pretraining, which every source of their kind has: the prediction of the next sentence, and ELECTRA's of
# replaced tokens.
_USUAL_HEADS = ("cls.seq_relationship.", "discriminator_predictions.")
_MOST_SHOWN = 10  # names in a message
_TIED = {
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "decoder.weight": "embeddings.tok_embeddings.weight",
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "vocab_projector.weight": "embeddings.word_embeddings.weight",
    "generator_lm_head.weight": "embeddings.word_embeddings.weight",
}
# Architecture -> the head's name in the task of its kind.
_HEAD_NAMES = {
    "sequence-classification": "sentence_classification_head",
    "token-classification": "tagging_head",
    "question-answering": "span_head",
}
_POOLING = {"cls": "first", "mean": "mean"}  # ModernBERT's name for what a sentence head reads -> ours


def open_folder(folder: Path, cased: bool = False, symbols: str | None = None) -> Source:
    """Read a folder saved by transformers' ``save_pretrained``, without running its code; see ``readable_folder``."""
    refuse_special_files(folder.iterdir())
    config = read_config(folder)
    theirs, files, outside = read_weights(folder)
    architecture = _architecture(folder, config, theirs)
    head, kept = _HEAD_NAMES.get(architecture), kept_weights(theirs)
    weights = convert_weights(folder, config, theirs, architecture, head)
    heads = _other_heads(folder, FAMILIES[config["model_type"]], theirs, outside, architecture)
    # In other families padding is hidden by the attention mask alone, whatever its id.
    counts_from_padding = FAMILIES[config["model_type"]].position_offset > 0
    with readable_folder(folder, kept_files(folder), cased, symbols, not counts_from_padding) as place:
        vocabulary = read_vocabulary(
            place,
            rows=len(weights["encoder.embed_tokens.weight"]),
            pad=padding(config) if counts_from_padding else None,
            like_bert=not counts_from_padding,
        )
        files_to_keep = kept_files(place)

    from fairseq_maelm.hf import open_pretrained  # imports transformers

    # Version 5 of transformers would round the weights to the data type in config.json, and shows tables of weights.
    with quiet(import_transformers()):
        model = open_pretrained(AUTO_CLASSES[architecture], folder, torch_dtype=torch.float32).eval()
    move_type_0_to_positions(model)
    order, is_stock = torch.tensor(vocabulary.order), config["model_type"] != OUR_FORMAT
    return Source(
        options=model_options(config),
        architecture=architecture,
        weights=weights,
        vocabulary=vocabulary,
        compute=_computing(
            folder, lambda tokens: transformers_outputs(model.base_model, model, architecture, tokens, order)
        ),
        facts={
            "kind": f"Hugging Face {config['model_type']}",
            "architectures": config.get("architectures"),
            **{f"SHA-256 of {file.name}": sha256_of(file) for file in files},
        },
        files=files_to_keep if is_stock else {},
        kept_weights=kept,
        heads=heads,
    )


def _computing(folder: Path, compute: Computation) -> Computation:
    """Return the computation with errors of one line: transformers fails in many ways."""

    def checked(tokens: Tensor) -> dict[str, Tensor]:
        try:
            return compute(tokens)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise refuse(folder, f"transformers cannot compute its outputs ({reason})") from error

    return checked


def _architecture(folder: Path, config: dict[str, Any], theirs: dict[str, Tensor]) -> str:
    """Infer the architecture: an LM head from its weights; other heads, whose weights look alike, from ``config``."""
    family, named = FAMILIES[config["model_type"]], str(config.get("architectures"))
    if family.lm_head["lm_head.bias"] in theirs:
        return "masked-lm"
    found = next((name for name in _HEAD_NAMES if f"{ARCHITECTURES[name]}'" in named), "encoder")
    if found != "encoder" and found not in family.heads:
        raise refuse(folder, f"its head for {found} computes scores differently from our head")
    return found


def read_weights(folder: Path) -> tuple[dict[str, Tensor], list[Path], set[str]]:
    """Read all weights of a folder in single precision, from one file or from shards, without running pickled code.

    Returned are the weights by their names without the base model's prefix; the files; and the names of weights outside
    of the base model, which are known if the others have its prefix.
    """
    name = next((name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if name is None:
        raise FileNotFoundError(f"there are no weights in {folder}: put {_WEIGHT_FILES[0]} or {_WEIGHT_FILES[2]} there")
    files = [folder / name]
    if name.endswith(".index.json"):
        shards = read_json(files[0]).get("weight_map")
        if not isinstance(shards, dict) or any(Path(str(shard)).name != shard for shard in shards.values()):
            raise refuse(folder, f"{name} may only name files in this folder")
        files = [folder / shard for shard in sorted(set(shards.values()))]
    weights: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no {file}, which {name} lists")
        weights |= _read_file(file)
    if adapted := sorted(name for name in weights if ".lora_" in name):
        raise refuse(
            folder,
            f"its weights hold LoRA adapters, such as {adapted[0]}: merge them, model.merge_and_unload() in peft, and "
            "save the result",
        )
    if without_prefix(weights) is not weights:  # transformers, with which the result is compared, would find none
        raise refuse(
            folder, 'all names of its weights begin with "module.": save the model in DataParallel, model.module'
        )
    prefixes = sorted({family.prefix for family in FAMILIES.values()})
    bases = {each: next((prefix for prefix in prefixes if each.startswith(prefix)), "") for each in weights}
    outside = {_current(each) for each, base in bases.items() if not base} if any(bases.values()) else set()
    weights = {_current(each.removeprefix(bases[each])): weight.float() for each, weight in weights.items()}
    return weights, files, outside


def _current(name: str) -> str:
    """Return a weight's modern name; early BERT files use TensorFlow's names for LayerNorm weights."""
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: f"LayerNorm.{_OLD_NAMES[old[1]]}", name)


def _read_file(file: Path) -> dict[str, Tensor]:
    if file.suffix != ".safetensors":
        weights = load_plain(file)
    else:
        try:
            from safetensors.torch import load_file

            weights = load_file(file)
        except ImportError as error:
            raise ValueError(f"{file} needs the package safetensors: pip install 'fairseq_maelm[hf]'") from error
        except Exception as error:  # the library's errors are of all kinds
            raise ValueError(f"{file} cannot be read as weights: {error}") from error
    if not isinstance(weights, dict):
        raise ValueError(f"{file} is not a dictionary of weights")
    check_weights(weights, file)
    return dict(weights)


def _other_heads(
    folder: Path, family: Family, theirs: dict[str, Tensor], outside: set[str], architecture: str
) -> dict[str, Tensor]:
    """Return the weights of further heads, which no state depends on; refuse other weights that were not converted."""
    used = (*family.lm_head.values(), *family.heads.get(architecture, {}).values())
    # A further weight in a head that is imported would change its scores.
    parts = tuple(f"{name.rpartition('.')[0] or name}." for name in used)
    usual = {name for name in theirs if name.startswith(_USUAL_HEADS)}
    inside = sorted(name for name in theirs.keys() - usual if name not in outside or name.startswith(parts))
    if inside:
        raise refuse(folder, f"our encoder does not have {len(inside)} of its weights, such as {inside[0]}")
    if further := sorted({name.rpartition(".")[0] for name in theirs.keys() - usual}):
        logger.warning(
            "%s has further heads, %s%s: their weights are not used here, and an export gives them back",
            folder, ", ".join(further[:_MOST_SHOWN]), " and others" * (len(further) > _MOST_SHOWN),
        )  # fmt: skip
    return theirs


def _with_pooling(folder: Path, weights: dict[str, Tensor], pooling: Any, head: str | None) -> dict[str, Tensor]:
    """Rename the dense layer of a sentence head by what the head reads; only ModernBERT's configuration names it."""
    if pooling not in _POOLING:
        raise refuse(folder, f"classifier_pooling is {pooling!r}, not one of {', '.join(_POOLING)}")
    first, ours = (f"classification_heads.{head}.{POOLING[each]}." for each in ("first", _POOLING[pooling]))
    return {name.replace(first, ours): weight for name, weight in weights.items()}


def convert_weights(
    folder: Path, config: dict[str, Any], theirs: dict[str, Tensor], architecture: str, head: str | None
) -> dict[str, Tensor]:
    """Move weights from ``theirs`` to a dict with our names; vocabulary rows stay in the source's order."""
    family, options = FAMILIES[config["model_type"]], model_options(config)
    types = theirs.pop("embeddings.token_type_embeddings.weight", None)
    for name, other in _TIED.items():
        weight = theirs.pop(name, None)
        if weight is not None and not torch.equal(weight, theirs.setdefault(other, weight)):
            raise refuse(folder, f"{name} differs from {other}, but our LM head has one tensor for both")
    try:
        ours = take_weights(theirs, family, options, architecture, head, position_offset(config))
    except KeyError as error:
        raise refuse(folder, f"its weights lack {error.args[0]}") from error
    if architecture == "sequence-classification":
        ours = _with_pooling(folder, ours, config.get("classifier_pooling", "cls"), head)
    for name in _NOT_NEEDED:
        theirs.pop(name, None)
    if types is not None and bool(types.any()):
        # Every token has type 0 by default, so its row is added to all positions.
        ours["encoder.embed_positions.weight"] = ours["encoder.embed_positions.weight"] + types[0]
        logger.info("the embedding of token type 0 is added to the positions; %d others are omitted", len(types) - 1)
    return ours
