"""The model in a form that torch.onnx can trace: inference on whole sequences, with attention in plain operations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.interop.export.sentence_vectors import POOLINGS
from fairseq_maelm.models.maelm import MaelmModel
from fairseq_maelm.modules.attention.rotary import Rotation, rotate, rotations
from fairseq_maelm.modules.transformer import TransformerLayer

INPUTS = ("input_ids", "attention_mask")

# The possible outputs: states of all tokens, scores of a fine-tuned head, one vector for each text.
STATES, SCORES, EMBEDDING = "last_hidden_state", "logits", "sentence_embedding"


class EncoderGraph(nn.Module):
    """The encoder, optionally with a fine-tuned head or with pooling.

    Pooling, "mean" of the states of all tokens or "first", the state of <s>, adds a vector for each text as an output;
    ``normalized`` vectors have length 1. The relative position bias is computed once, as a table over distances.
    """

    def __init__(
        self, model: MaelmModel, head: str | None = None, pooling: str | None = None, normalized: bool = False
    ) -> None:
        super().__init__()
        if head is not None and head not in model.classification_heads:
            raise ValueError(f"the model has no head {head!r}")
        if pooling is not None and (pooling not in POOLINGS or head is not None):
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, and cannot be combined with a head")
        encoder = model.encoder
        self.embed_tokens, self.embed_positions = encoder.embed_tokens, encoder.embed_positions
        self.layernorm_embedding, self.layers = encoder.layernorm_embedding, encoder.layers
        self.final_layer_norm, self.shape = encoder.final_layer_norm, encoder.layer_config
        self.max_positions = model.max_positions()
        self.head = None if head is None else model.classification_heads[head]
        self.pooling, self.normalized = pooling, normalized
        self.of_distance: Tensor | None = None
        if encoder.relative_attention_bias is not None:
            self.of_distance = nn.Parameter(encoder.relative_attention_bias().detach(), requires_grad=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs of ``forward``, in order."""
        if self.head is not None:
            return (SCORES,)
        return (STATES,) if self.pooling is None else (STATES, EMBEDDING)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Encode tokens <int64>[B, S] with a mask <int64>[B, S], 1 at tokens and 0 at padding, on the right.

        Returns:
            states <float>[B, S, D], and with pooling vectors <float>[B, D]; or scores of sequences <float>[B, classes]
            or tokens <float>[B, S, outputs].
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            states = states + self.embed_positions(positions)
        states = self.layernorm_embedding(states)
        bias = self._bias(positions, attention_mask, states.dtype)
        turns = rotations(positions[None], self.shape.rotary_bases, self.shape.head_dim, states)
        for number, layer in enumerate(self.layers):
            base = self.shape.rotary_base(number)
            states = _layer(layer, states, bias, None if base is None else turns[base])
        if self.final_layer_norm is not None:
            states = self.final_layer_norm(states)
        if self.head is not None:
            return (self.head(states),)
        if self.pooling is None:
            return (states,)
        vectors = states[:, 0] if self.pooling == "first" else _mean(states, attention_mask)
        return states, F.normalize(vectors, dim=-1) if self.normalized else vectors

    def _bias(self, positions: Tensor, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Return <float>[B, H or 1, S or 1, S] with the lowest finite logit at padding, since -inf might give NaN."""
        hidden = (1 - attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min
        if self.of_distance is None:
            return hidden
        index = positions[None, :] - positions[:, None] + self.of_distance.shape[1] // 2
        return self.of_distance[:, index][None] + hidden


def _layer(layer: TransformerLayer, states: Tensor, bias: Tensor, rotation: Rotation | None) -> Tensor:
    """Compute the layer's output <float>[B, S, D] in evaluation mode."""
    norm = layer.self_attn_layer_norm
    if not layer.modern:
        states = norm(states + _attend(layer, states, bias, rotation))
        return layer.final_layer_norm(states + layer.fc2(F.gelu(layer.fc1(states))))
    states = states + _attend(layer, states if norm is None else norm(states), bias, rotation)
    inner, gate = layer.fc1(layer.final_layer_norm(states)).chunk(2, dim=-1)
    return states + layer.fc2(F.gelu(inner) * gate)


def _attend(layer: TransformerLayer, states: Tensor, bias: Tensor, rotation: Rotation | None) -> Tensor:
    attention = layer.self_attn
    query, key, value = attention.qkv_proj(states).unflatten(-1, (3, attention.num_heads, -1)).unbind(dim=2)
    query, key, value = (each.transpose(1, 2) for each in (rotate(query, rotation), rotate(key, rotation), value))
    # Scaling the queries instead of the logits saves a product over [B, H, S, S].
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias
    return attention.out_proj((logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))


def _mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    kept = attention_mask[:, :, None].to(states.dtype)
    return (states * kept).sum(dim=1) / kept.sum(dim=1)
