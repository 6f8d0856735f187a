"""Weight names: conversion between ours and those in each exported or imported model family."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_POSITIONS = "embed_positions.weight"
# Function, number and largest distance of MPNet's buckets. transformers hard-codes them
# (MPNetEncoder.compute_position_bias) and ignores the configuration.
MPNET_BUCKETS = ("t5", 32, 128)


@dataclass(frozen=True)
class Family:
    """Maps our weight names to those of a model family. A name without ".weight" or ".bias" stands for both."""

    prefix: str  # prefix of the encoder's names in models with a head
    encoder: dict[str, str]  # the encoder without its layers
    layers: str  # prefix of the names in the encoder's layer {}
    layer: dict[str, tuple[str, ...]]  # one layer; several names are stacked by rows in our matrix
    lm_head: dict[str, str]
    heads: dict[str, dict[str, str]] = field(default_factory=dict)  # the fine-tuned head of each architecture
    # Row of the first position in the position table: for RoBERTa, the padding index plus 1.
    position_offset: int = 2
    token_types: int = 0  # number of token types in the stock class
    has_pooler: bool = False  # the stock encoder has a pooler
    eps: float | None = None  # of all LayerNorms, if it is fixed in the stock class


_HUGGING_FACE_ENCODER = {
    "encoder.embed_tokens.weight": "embeddings.word_embeddings.weight",
    "encoder.embed_positions.weight": "embeddings.position_embeddings.weight",
    "encoder.layernorm_embedding": "embeddings.LayerNorm",
}
_FEED_FORWARD = {"fc1": ("intermediate.dense",), "fc2": ("output.dense",), "final_layer_norm": ("output.LayerNorm",)}
_LM_HEAD = {name: name for name in ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")}
_HEADS = {
    "sequence-classification": {"dense": "classifier.dense", "out_proj": "classifier.out_proj"},
    "token-classification": {"out_proj": "classifier"},
    "question-answering": {"out_proj": "qa_outputs"},
}
ROBERTA = Family(
    prefix="roberta.",
    encoder=_HUGGING_FACE_ENCODER,
    layers="encoder.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        "self_attn.out_proj": ("attention.output.dense",),
        "self_attn_layer_norm": ("attention.output.LayerNorm",),
        **_FEED_FORWARD,
    },
    lm_head=_LM_HEAD,
    heads=_HEADS,
    token_types=1,
    has_pooler=True,
)
# Heads that score tokens; a sequence's scores are computed in another way by each of these families.
_TOKEN_HEADS = {name: names for name, names in _HEADS.items() if name != "sequence-classification"}
BERT = replace(
    ROBERTA,
    prefix="bert.",
    lm_head={
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
        "lm_head.bias": "cls.predictions.bias",
    },
    heads={**_TOKEN_HEADS, "sequence-classification": {"dense": "bert.pooler.dense", "out_proj": "classifier"}},
    position_offset=0,
    token_types=2,
)
ELECTRA = replace(
    BERT,
    prefix="electra.",
    lm_head={
        "lm_head.dense": "generator_predictions.dense",
        "lm_head.layer_norm": "generator_predictions.LayerNorm",
        "lm_head.bias": "generator_lm_head.bias",
    },
    heads=_TOKEN_HEADS,
    has_pooler=False,
)
DISTILBERT = Family(
    prefix="distilbert.",
    encoder=_HUGGING_FACE_ENCODER,
    layers="transformer.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.{name}_lin" for name in "qkv"),
        "self_attn.out_proj": ("attention.out_lin",),
        "self_attn_layer_norm": ("sa_layer_norm",),
        "fc1": ("ffn.lin1",),
        "fc2": ("ffn.lin2",),
        "final_layer_norm": ("output_layer_norm",),
    },
    lm_head={
        "lm_head.dense": "vocab_transform",
        "lm_head.layer_norm": "vocab_layer_norm",
        "lm_head.bias": "vocab_projector.bias",
    },
    heads=_TOKEN_HEADS,
    position_offset=0,
    eps=1e-12,
)
# Our own classes for transformers use MPNet's names too.
MPNET = Family(
    prefix="mpnet.",
    encoder={
        **_HUGGING_FACE_ENCODER,
        "encoder.relative_attention_bias.weight": "encoder.relative_attention_bias.weight",
    },
    layers="encoder.layer.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"attention.attn.{name}" for name in "qkv"),
        "self_attn.out_proj": ("attention.attn.o",),
        "self_attn_layer_norm": ("attention.LayerNorm",),
        **_FEED_FORWARD,
    },
    has_pooler=True,
    lm_head=_LM_HEAD,
    heads=_HEADS,
)
_MODERN_HEAD = {
    "transform.dense.weight": "head.dense.weight",
    "transform.layer_norm.weight": "head.norm.weight",
    "out_proj": "classifier",
}
# Our modern layer as ModernBERT's configuration: written by export, required by import.
MODERNBERT_SETTINGS: dict[str, Any] = {
    "hidden_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_pooling": "cls",
    "classifier_activation": "gelu",
}
MODERNBERT = Family(
    prefix="model.",
    encoder={
        "encoder.embed_tokens.weight": "embeddings.tok_embeddings.weight",
        "encoder.layernorm_embedding.weight": "embeddings.norm.weight",
        "encoder.final_layer_norm.weight": "final_norm.weight",
    },
    layers="layers.{}.",
    layer={
        "self_attn.qkv_proj.weight": ("attn.Wqkv.weight",),
        "self_attn.out_proj.weight": ("attn.Wo.weight",),
        "self_attn_layer_norm.weight": ("attn_norm.weight",),
        "final_layer_norm.weight": ("mlp_norm.weight",),
        "fc1.weight": ("mlp.Wi.weight",),
        "fc2.weight": ("mlp.Wo.weight",),
    },
    lm_head={
        "lm_head.dense.weight": "head.dense.weight",
        "lm_head.layer_norm.weight": "head.norm.weight",
        "lm_head.bias": "decoder.bias",
    },
    heads={
        "sequence-classification": {name.removeprefix("transform."): theirs for name, theirs in _MODERN_HEAD.items()},
        "token-classification": _MODERN_HEAD,
        "question-answering": _MODERN_HEAD,
    },
    position_offset=0,
)
_SENTENCE_ENCODER = "encoder.sentence_encoder."
FAIRSEQ_ROBERTA = Family(
    prefix="",
    encoder={
        f"encoder.{name}": _SENTENCE_ENCODER + name
        for name in ("embed_tokens.weight", "embed_positions.weight", "layernorm_embedding")
    },
    layers=_SENTENCE_ENCODER + "layers.{}.",
    layer={
        "self_attn.qkv_proj": tuple(f"self_attn.{name}_proj" for name in "qkv"),
        **{name: (name,) for name in ("self_attn.out_proj", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")},
    },
    lm_head={name: f"encoder.{name}" for name in _LM_HEAD},
)
# model_type in config.json -> family
FAMILIES = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    **dict.fromkeys(("mpnet", "maelm"), MPNET),
    "modernbert": MODERNBERT,
    "bert": BERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
}


def _names(
    family: Family, options: Mapping[str, Any], architecture: str, head: str | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield, for each weight of a model with these options, our name and the family's names."""
    table: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in family.encoder.items()}
    if architecture == "masked-lm":
        table |= {ours: (theirs,) for ours, theirs in family.lm_head.items()}
    elif architecture != "encoder" and head is not None:
        table |= {f"classification_heads.{head}.{ours}": (name,) for ours, name in family.heads[architecture].items()}
    for number in range(options["encoder_layers"]):
        for ours, names in family.layer.items():
            table[f"encoder.layers.{number}.{ours}"] = tuple(family.layers.format(number) + name for name in names)
    left_out = _left_out(options)
    for ours, theirs in table.items():
        if ours in left_out:
            continue
        if ours.endswith((".weight", ".bias")):
            yield ours, theirs
        else:
            yield from ((f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)) for kind in ("weight", "bias"))


def _left_out(options: Mapping[str, Any]) -> set[str]:
    """Return our names for the weights that a model with these options lacks."""
    # The first layer of ModernBERT has no LayerNorm in front, because the embeddings have one.
    left_out = {"encoder.layers.0.self_attn_layer_norm.weight"}
    if str(options["relative_buckets"]) == "none":
        left_out.add("encoder.relative_attention_bias.weight")
    return left_out


def weights_of_family(
    state: Mapping[str, Tensor], family: Family, options: Mapping[str, Any], architecture: str, head: str | None
) -> dict[str, Tensor]:
    """Return our weights under a family's names, as <float32> copies because safetensors refuses shared memory.

    Args:
        state: our state dictionary.
        family: names of the weights.
        options: options of our model.
        architecture: "encoder", "masked-lm", or the architecture of the head.
        head: name of the fine-tuned head, or None.
    """
    prefix = "" if architecture == "encoder" else family.prefix
    named = {}
    for ours, theirs in _names(family, options, architecture, head):
        tensor = state[ours].detach().float()
        if ours.endswith(_POSITIONS):
            tensor = F.pad(tensor, (0, 0, family.position_offset, 0))
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            full_name = prefix + name if ours.startswith("encoder.") else name
            named[full_name] = part.clone(memory_format=torch.contiguous_format)
    return named


def take_weights(
    theirs: dict[str, Tensor],
    family: Family,
    options: Mapping[str, Any],
    architecture: str,
    head: str | None = None,
    first_position: int | None = None,
) -> dict[str, Tensor]:
    """Return a family's weights under our names; for the other arguments see ``weights_of_family``.

    The names in ``theirs`` lack the prefix of models with a head; converted weights are removed from ``theirs``.
    ``first_position`` is the first token's row in the position table, by default ``family.position_offset``. A missing
    weight raises a KeyError.
    """
    first_row = family.position_offset if first_position is None else first_position
    state = {}
    for ours, names in _names(family, options, architecture, head):
        tensor = torch.cat([theirs.pop(name.removeprefix(family.prefix)) for name in names])
        state[ours] = tensor[first_row:] if ours.endswith(_POSITIONS) else tensor
    return state
