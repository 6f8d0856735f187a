"""Transformer layers and stacks of them."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.context import AttentionContext
from fairseq_maelm.modules.attention.layers import CrossAttention, LayerConfig, Memory, SelfAttention
from fairseq_maelm.modules.autocast import LayerNorm
from fairseq_maelm.modules.dropout import add_dropped
from fairseq_maelm.modules.layer_modes import Layer, recomputed
from fairseq_maelm.modules.output_positions import OutputPositions

# The paper's layer (Vaswani et al., 2017: LayerNorm after each residual sum) and ModernBERT's (Warner et al., 2024:
# LayerNorm before each sub-layer, gated feed-forward network, no bias anywhere).
LAYERS = ("post_norm", "modern")
# Values of ``--decoder-attention``. Checkpoints store the index in this tuple, so the order must not change.
DECODER_ATTENTION = ("self", "self_cross", "causal_cross", "cross", "shared")


class TransformerLayer(Layer):
    """Self-attention, cross-attention or both, and a feed-forward network, each with a residual and a LayerNorm.

    ``attention`` is one of ``DECODER_ATTENTION``; whether self-attention is causal depends on its context. ``number``
    is the index in the stack: in a modern one, the first sub-layer of layer 0 has no LayerNorm, because the embeddings
    are already normalized.
    """

    def __init__(self, config: LayerConfig, number: int = 0, attention: str = "self") -> None:
        super().__init__()
        self.modern, self.dropout = config.modern, config.dropout
        self.self_attn: Any = None
        self.cross_attn: Any = None
        # Whether the layer's input is already normalized.
        normalized = config.modern and number == 0
        if attention != "cross":
            self.self_attn = SelfAttention(config, number)
            self.self_attn_layer_norm: Any = None if normalized else config.layer_norm()
        if attention != "self":
            self.cross_attn = CrossAttention(config, number)
            self.cross_attn_layer_norm = None if normalized and attention == "cross" else config.layer_norm()
        width, inner = config.embed_dim, config.ffn_embed_dim
        self.fc1 = nn.Linear(width, 2 * inner if config.modern else inner, not config.modern)
        self.fc2 = nn.Linear(inner, width, not config.modern)
        self.final_layer_norm = config.layer_norm()  # of the feed-forward network

    def forward(self, states: Tensor, context: AttentionContext | None, memory: Memory | None = None) -> Tensor:
        """Transform states <float>[B, S, D], or the stream rows <float>[B * S + M, D] of two streams.

        Args:
            states: the layer's input. Only attention tells sequences apart; everything else works on each row alone.
            context: who reads whom in self-attention. If it asks for some outputs only, the result is <float>[M, D].
                None in a layer without self-attention, whose states may be <float>[M, D].
            memory: what cross-attention reads.
        """
        if self.self_attn is not None:
            assert context is not None
            attended = self.self_attn(self._before(states, self.self_attn_layer_norm), context)
            states = self._add(context.take_outputs(states), attended, self.self_attn_layer_norm)
        if self.cross_attn is not None:
            attended = self.cross_attn(self._before(states, self.cross_attn_layer_norm), memory)
            states = self._add(states, attended, self.cross_attn_layer_norm)
        inner = recomputed(lambda rows: self.fc1(self._before(rows, self.final_layer_norm)), states)
        transformed = recomputed(lambda rows: self.fc2(self._activate(rows)), inner)
        return self._add(states, transformed, self.final_layer_norm)

    def _before(self, states: Tensor, norm: LayerNorm | None) -> Tensor:
        return norm(states) if self.modern and norm is not None else states

    def _add(self, residual: Tensor, states: Tensor, norm: LayerNorm | None) -> Tensor:
        total = add_dropped(residual, states, self.dropout, self.training)
        return total if self.modern or norm is None else norm(total)

    def _activate(self, states: Tensor) -> Tensor:
        if not self.modern:
            return F.gelu(states)
        states, gate = states.chunk(2, dim=-1)
        return F.gelu(states) * gate


def run_layers(
    layers: nn.ModuleList,
    states: Tensor,
    context: AttentionContext,
    outputs: OutputPositions | None = None,
    memories: Sequence[Memory | None] | None = None,
) -> list[Tensor]:
    """Apply layers with self-attention to <float>[B, S, D]; return the input and the states after each layer.

    With ``outputs``, the last layer computes these positions only, and the last states are <float>[M, D]. ``memories``
    has what the cross-attention of each layer reads.
    """
    all_states = [states]
    for number, layer in enumerate(layers):
        memory = None if memories is None else memories[number]
        if outputs is not None and number == len(layers) - 1:
            context = context.at(outputs, len(states))
            memory = memory and memory._replace(context=memory.context.at(outputs, len(states)))
        all_states.append(layer(all_states[-1], context, memory))
    return all_states
