"""Reading the weights of a Hugging Face folder and giving them our names."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.interop.export.weights import LAYER_PARTS, SEPARATE
from fairseq_maelm.interop.importing.huggingface_config import first_position, model_options
from fairseq_maelm.interop.importing.source import refuse
from fairseq_maelm.modules.cross_attention_layer import DECODER_ATTENTION

logger = logging.getLogger(__name__)

_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# Of each layer: the projections of query, key and value, then our name -> theirs. MPNet's are those of an export.
_ROBERTA_QKV = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
_ROBERTA_LAYER = {
    **LAYER_PARTS,
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
}

# Buffers that old versions saved, and the pooler, which no masked language model has trained.
_NOT_NEEDED = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
# Our name of a fine-tuned head -> their name of it, and its layers.
FINE_TUNED_HEADS = {
    "sentence_classification_head": ("classifier", ("dense", "out_proj")),
    "tagging_head": ("classifier", ("out_proj",)),
    "span_head": ("qa_outputs", ("out_proj",)),
}
_TIED = {"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}


def read_weights(folder: Path) -> tuple[dict[str, Tensor], list[Path]]:
    """All weights of a folder in single precision, from one file or from shards.

    Nothing but tensors is read: a file of pickled code is refused by torch.

    Returns:
        name -> tensor, without the prefix of the base model; and the files.

    Raises:
        FileNotFoundError: if there are no weights, or a shard is missing.
        ValueError: if safetensors is not installed, or a file cannot be read.
    """
    name = next((name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if name is None:
        raise FileNotFoundError(f"there are no weights in {folder}: neither {_WEIGHT_FILES[0]} nor {_WEIGHT_FILES[2]}")
    files = [folder / name]
    if name.endswith(".index.json"):
        index = json.loads(files[0].read_text(encoding="utf-8"))["weight_map"]
        files = [folder / shard for shard in sorted(set(index.values()))]
    weights: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no {file}, which {name} names")
        weights |= _read_file(file)
    return {_without_prefix(name): weight.float() for name, weight in weights.items()}, files


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        return dict(torch.load(file, map_location="cpu", weights_only=True))
    except ImportError as error:
        raise ValueError(f"{file} needs the package safetensors: pip install 'fairseq_maelm[hf]'") from error
    except Exception as error:  # each library has errors of its own for a damaged or a dangerous file
        raise ValueError(f"{file} cannot be read as weights: {error}") from error


def _without_prefix(name: str) -> str:
    for prefix in ("roberta.", "mpnet."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def convert_weights(folder: Path, config: dict[str, Any], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give weights our names; the vocabulary stays in the source's order.

    Args:
        folder: named in errors.
        config: checked.
        theirs: as ``read_weights`` returns them; emptied of all that was used.

    Raises:
        ValueError: if weights are missing, are there that we have no place for, or are not tied as ours.
    """
    try:
        ours = _embeddings(config, theirs) | _layers(config, theirs, "encoder", int(config["num_hidden_layers"]))
        if "lm_head.dense.weight" in theirs:
            _check_tied(folder, theirs)
            ours |= _prediction_head(theirs) | _decoder(config, theirs)
        ours |= _fine_tuned_head(theirs)
    except KeyError as error:
        raise refuse(folder, f"its weights lack {error.args[0]}") from error
    for name in (*_NOT_NEEDED, "embeddings.word_embeddings.weight"):
        theirs.pop(name, None)
    if theirs:
        raise refuse(folder, f"our encoder has no place for {len(theirs)} of its weights, such as {sorted(theirs)[0]}")
    return ours


def _take(theirs: dict[str, Tensor], ours: str, name: str) -> dict[str, Tensor]:
    return {f"{ours}.{part}": theirs.pop(f"{name}.{part}") for part in ("weight", "bias")}


def _embeddings(config: dict[str, Any], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    positions = theirs.pop("embeddings.position_embeddings.weight")[first_position(config) :].clone()
    types = theirs.pop("embeddings.token_type_embeddings.weight", None)
    if types is not None and bool(types.any()):
        # Every token has type 0 unless somebody says otherwise: the row is one more part of every position.
        positions += types[0]
        logger.info("the embedding of token type 0 is added to the positions; %d others are dropped", len(types) - 1)
    state = {
        "encoder.embed_tokens.weight": theirs["embeddings.word_embeddings.weight"],
        "encoder.embed_positions.weight": positions,
        **_take(theirs, "encoder.layernorm_embedding", "embeddings.LayerNorm"),
    }
    if model_options(config)["relative_buckets"] != "none":
        state["encoder.relative_attention_bias.weight"] = theirs.pop("encoder.relative_attention_bias.weight")
    return state


def _layers(config: dict[str, Any], theirs: dict[str, Tensor], stack: str, number: int) -> dict[str, Tensor]:
    like_mpnet = config["model_type"] in ("mpnet", "maelm")
    qkv, names = (SEPARATE, LAYER_PARTS) if like_mpnet else (_ROBERTA_QKV, _ROBERTA_LAYER)
    state: dict[str, Tensor] = {}
    for layer in range(number):
        ours, prefix = f"{stack}.layers.{layer}.", f"{stack}.layer.{layer}."
        for part in ("weight", "bias"):
            # Our rows are all queries, then all keys, then all values.
            state[f"{ours}self_attn.qkv_proj.{part}"] = torch.cat(
                [theirs.pop(f"{prefix}{each}.{part}") for each in qkv]
            )
        for own, name in names.items():
            state |= _take(theirs, ours + own, prefix + name)
    return state


def _check_tied(folder: Path, theirs: dict[str, Tensor]) -> None:
    for name, other in _TIED.items():
        weight = theirs.pop(name, None)
        if weight is None:
            continue
        if other not in theirs:
            theirs[other] = weight
        elif not torch.equal(weight, theirs[other]):
            raise refuse(folder, f"{name} differs from {other}, and our prediction head has one tensor for both")


def _prediction_head(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    head = {"lm_head.bias": theirs.pop("lm_head.bias")}
    for name in ("dense", "layer_norm"):
        head |= _take(theirs, f"lm_head.{name}", f"lm_head.{name}")
    if "lm_head.projection.weight" in theirs:
        head["lm_head.output_projection.weight"] = theirs.pop("lm_head.projection.weight")
    return head


def _decoder(config: dict[str, Any], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder of a folder of `maelm export`, where it has one."""
    options = model_options(config)
    if not options["decoder_layers"]:
        return {}
    state = _take(theirs, "decoder.layernorm_embedding", "decoder.LayerNorm")
    if not options["share_decoder_positions"]:
        positions = theirs.pop("decoder.position_embeddings.weight")
        state["decoder.embed_positions.weight"] = positions[first_position(config) :].clone()
    if "decoder.projection.weight" in theirs:
        state |= _take(theirs, "decoder.input_projection", "decoder.projection")
    identity = [options["decoder_attention_heads"], DECODER_ATTENTION.index("self")]
    state["decoder.identity"] = torch.tensor(identity, dtype=torch.int64)
    return state | _layers(config, theirs, "decoder", options["decoder_layers"])


def _fine_tuned_head(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A head on sentences or tokens, under the name that the task of its kind gives it."""
    state: dict[str, Tensor] = {}
    for name, (theirs_of, layers) in FINE_TUNED_HEADS.items():
        for layer in layers:
            source = f"{theirs_of}.{layer}" if len(layers) > 1 else theirs_of
            if f"{source}.weight" in theirs:
                state |= _take(theirs, f"classification_heads.{name}.{layer}", source)
    return state
