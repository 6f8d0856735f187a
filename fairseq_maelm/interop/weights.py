"""Names of weights, ours and those of the families of models that are exported and imported, and the way between."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of position tables in front of the first position: RoBERTa and MPNet count from behind the padding symbol.
POSITION_OFFSET = 2
_POSITIONS = "embed_positions.weight"


@dataclass(frozen=True)
class Family:
    """Our names -> a family's. A name without ".weight" or ".bias" at its end stands for both.

    Attributes:
        prefix: in front of the encoder's names in models with a head.
        encoder: the encoder outside of its layers.
        layers: where layer {} of the encoder is.
        layer: one layer; several names are one matrix in ours, stacked by rows.
        lm_head: the prediction head.
        decoder: the decoder outside of its layers, for families that have one.
        heads: architecture -> the fine-tuned head.
    """

    prefix: str
    encoder: dict[str, str]
    layers: str
    layer: dict[str, tuple[str, ...]]
    lm_head: dict[str, str]
    decoder: dict[str, str] = field(default_factory=dict)
    heads: dict[str, dict[str, str]] = field(default_factory=dict)


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
)
# Our own classes of transformers keep MPNet's names.
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
    lm_head={**_LM_HEAD, "lm_head.output_projection.weight": "lm_head.projection.weight"},
    decoder={
        "decoder.input_projection": "decoder.projection",
        "decoder.layernorm_embedding": "decoder.LayerNorm",
        "decoder.embed_positions.weight": "decoder.position_embeddings.weight",
    },
    heads=_HEADS,
)
_MODERN_HEAD = {
    "transform.dense.weight": "head.dense.weight",
    "transform.layer_norm.weight": "head.norm.weight",
    "out_proj": "classifier",
}
# What our modern layer is, in the words of a ModernBERT's configuration: written by export, required by import.
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
# The value of model_type in config.json -> the family.
FAMILIES = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    **dict.fromkeys(("mpnet", "maelm"), MPNET),
    "modernbert": MODERNBERT,
}


def _names(
    family: Family, options: Mapping[str, Any], architecture: str, head: str | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield our name and theirs of every weight of a model with these options."""
    table: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in family.encoder.items()}
    stacks = {"encoder": family.layers}
    if architecture == "masked-lm":
        table |= {ours: (theirs,) for ours, theirs in family.lm_head.items()}
        if options["decoder_layers"]:
            table |= {ours: (theirs,) for ours, theirs in family.decoder.items()}
            stacks["decoder"] = "decoder.layer.{}."
    elif head is not None:
        table |= {f"classification_heads.{head}.{ours}": (name,) for ours, name in family.heads[architecture].items()}
    for stack, place in stacks.items():
        for number in range(options[f"{stack}_layers"]):
            for ours, names in family.layer.items():
                table[f"{stack}.layers.{number}.{ours}"] = tuple(place.format(number) + name for name in names)
    left_out = _left_out(options)
    for ours, theirs in table.items():
        if ours in left_out:
            continue
        if ours.endswith((".weight", ".bias")):
            yield ours, theirs
        else:
            yield from ((f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)) for kind in ("weight", "bias"))


def _left_out(options: Mapping[str, Any]) -> set[str]:
    """Return our names of what a model with these options does not have."""
    # The first of ModernBERT's layers has no LayerNorm in front: the embeddings have one.
    left_out = {"encoder.layers.0.self_attn_layer_norm.weight"}
    if str(options["relative_buckets"]) == "none":
        left_out.add("encoder.relative_attention_bias.weight")
    if options.get("share_decoder_positions"):
        left_out.add("decoder.embed_positions.weight")
    width = options["encoder_embed_dim"]
    if not options["decoder_layers"] or options.get("decoder_embed_dim", width) == width:
        left_out |= {"decoder.input_projection", "lm_head.output_projection.weight"}
    return left_out


def weights_of_family(
    state: Mapping[str, Tensor],
    family: Family,
    options: Mapping[str, Any],
    architecture: str = "encoder",
    head: str | None = None,
) -> dict[str, Tensor]:
    """Give our weights a family's names, <float32> and each in memory of its own, as safetensors wants it.

    Args:
        state: of our model, name -> tensor.
        family: whose names.
        options: of our model: sizes, buckets.
        architecture: "encoder", "masked-lm", or that of the head.
        head: name of the fine-tuned head, or None.
    """
    prefix = "" if architecture == "encoder" else family.prefix
    named = {}
    for ours, theirs in _names(family, options, architecture, head):
        tensor = state[ours].detach().float()
        if ours.endswith(_POSITIONS):
            tensor = F.pad(tensor, (0, 0, POSITION_OFFSET, 0))
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            full_name = prefix + name if ours.startswith("encoder.") else name
            named[full_name] = part.clone(memory_format=torch.contiguous_format)
    return named


def take_weights(
    theirs: dict[str, Tensor],
    family: Family,
    options: Mapping[str, Any],
    architecture: str = "encoder",
    head: str | None = None,
    first_position: int = POSITION_OFFSET,
) -> dict[str, Tensor]:
    """Give a family's weights our names.

    Args:
        theirs: name -> tensor, without the prefix of models with a head; emptied of all that was used.
        family, options, architecture, head: as for ``weights_of_family``.
        first_position: row of the position table at which the first token stands.

    Raises:
        KeyError: the name of a weight that is missing.
    """
    state = {}
    for ours, names in _names(family, options, architecture, head):
        tensor = torch.cat([theirs.pop(name) for name in names])
        state[ours] = tensor[first_position:] if ours.endswith(_POSITIONS) else tensor
    return state
