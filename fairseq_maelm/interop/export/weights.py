"""Names of parameters: ours and those of Hugging Face's MPNet, which our own classes there keep.

Shapes: D width, P positions, V vocabulary.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

# Rows of MPNet's position table before the first position.
POSITION_OFFSET = 2

# Parts of a layer: our name, MPNet's. Query, key and value are one matrix here and three there.
LAYER_PARTS = {
    "self_attn.out_proj": "attention.attn.o",
    "self_attn_layer_norm": "attention.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
JOINT = "self_attn.qkv_proj"
SEPARATE = ("attention.attn.q", "attention.attn.k", "attention.attn.v")

# Parameters outside of layers; tables of positions, which differ in rows, apart.
ENCODER_PARTS = {
    "embed_tokens.weight": "embeddings.word_embeddings.weight",
    "layernorm_embedding.weight": "embeddings.LayerNorm.weight",
    "layernorm_embedding.bias": "embeddings.LayerNorm.bias",
    "relative_attention_bias.weight": "encoder.relative_attention_bias.weight",
}
ENCODER_POSITIONS = ("embed_positions.weight", "embeddings.position_embeddings.weight")
DECODER_PARTS = {
    "input_projection.weight": "projection.weight",
    "input_projection.bias": "projection.bias",
    "layernorm_embedding.weight": "LayerNorm.weight",
    "layernorm_embedding.bias": "LayerNorm.bias",
}
DECODER_POSITIONS = ("embed_positions.weight", "position_embeddings.weight")
LM_HEAD_PARTS = {
    "dense.weight": "dense.weight",
    "dense.bias": "dense.bias",
    "layer_norm.weight": "layer_norm.weight",
    "layer_norm.bias": "layer_norm.bias",
    "output_projection.weight": "projection.weight",
    "bias": "bias",
}


def encoder_weights(state: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The encoder under MPNet's names.

    Args:
        state: a model's state dictionary.
        prefix: in front of each name, "mpnet." in models with a head.
    """
    own = _below(state, "encoder.")
    named = {ENCODER_PARTS[name]: own[name] for name in ENCODER_PARTS if name in own}
    named[ENCODER_POSITIONS[1]] = _with_offset(own[ENCODER_POSITIONS[0]])
    named.update(_layers(own, "encoder.layer."))
    return {prefix + name: _single(tensor) for name, tensor in named.items()}


def masked_lm_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Encoder, decoder if there is one, and prediction head."""
    head, decoder = _below(state, "lm_head."), _below(state, "decoder.")
    named = {f"lm_head.{LM_HEAD_PARTS[name]}": tensor for name, tensor in head.items()}
    named.update({f"decoder.{DECODER_PARTS[name]}": decoder[name] for name in DECODER_PARTS if name in decoder})
    if DECODER_POSITIONS[0] in decoder:
        named[f"decoder.{DECODER_POSITIONS[1]}"] = _with_offset(decoder[DECODER_POSITIONS[0]])
    named.update(_layers(decoder, "decoder.layer."))
    return {**encoder_weights(state, "mpnet."), **{name: _single(tensor) for name, tensor in named.items()}}


def head_weights(state: Mapping[str, Tensor], head: str, architecture: str) -> dict[str, Tensor]:
    """Encoder and a fine-tuned head.

    Args:
        state: a model's state dictionary.
        head: its name among ``classification_heads``.
        architecture: "sequence-classification", whose head has a dense layer, "token-classification" or
            "question-answering", whose heads have none.
    """
    prefix = {
        "sequence-classification": "classifier.",
        "token-classification": "classifier.",
        "question-answering": "qa_outputs.",
    }[architecture]
    own = _below(state, f"classification_heads.{head}.")
    if architecture != "sequence-classification":
        own = _below(own, "out_proj.")
    return {**encoder_weights(state, "mpnet."), **{prefix + name: _single(tensor) for name, tensor in own.items()}}


def pooler_weights(width: int) -> dict[str, Tensor]:
    """A pooler that changes nothing but its tanh, for stock MPNet models, which always have one: ours was never
    trained, and random weights would be worse."""
    return {"pooler.dense.weight": torch.eye(width), "pooler.dense.bias": torch.zeros(width)}


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in state.items() if name.startswith(prefix)}


def _with_offset(positions: Tensor) -> Tensor:
    """<float>[P, D] to <float>[P + 2, D]."""
    return torch.cat([positions.new_zeros(POSITION_OFFSET, positions.shape[1]), positions])


def _layers(state: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.items():
        if not name.startswith("layers."):
            continue
        number, _, rest = name[len("layers.") :].partition(".")
        part, _, kind = rest.rpartition(".")
        if part == JOINT:
            for separate, third in zip(SEPARATE, tensor.chunk(3)):
                yield f"{prefix}{number}.{separate}.{kind}", third
        else:
            yield f"{prefix}{number}.{LAYER_PARTS[part]}.{kind}", tensor


def _single(tensor: Tensor) -> Tensor:
    """In single precision and in memory of its own, as safetensors wants it."""
    return tensor.detach().to(torch.float32).clone(memory_format=torch.contiguous_format)
