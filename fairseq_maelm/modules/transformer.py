"""Transformer layers, and running a stack of them."""

from typing import List, NamedTuple, Optional, Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import SelfAttention
from fairseq_maelm.modules.dropout import add_dropped
from fairseq_maelm.modules.execution import Layer
from fairseq_maelm.modules.precision import LAYER_NORM_EPS, LayerNorm
from fairseq_maelm.modules.wanted import WantedPositions


class LayerShape(NamedTuple):
    """The numbers that define a layer.

    Attributes:
        embed_dim: D.
        ffn_embed_dim: width of the feed-forward network.
        attention_heads: H, divides D.
        dropout: on the outputs of both sub-layers, in [0, 1).
        attention_dropout: on the attention weights, in [0, 1).
        attention_backend: how attention is computed, one of ``ATTENTION_BACKENDS``.
        layer_norm_eps: what LayerNorm adds to the variance.
    """

    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int
    dropout: float
    attention_dropout: float
    attention_backend: str = "auto"
    layer_norm_eps: float = LAYER_NORM_EPS

    @property
    def attention(self) -> Tuple[int, int, float, str]:
        """The arguments of an attention module."""
        return self.embed_dim, self.attention_heads, self.attention_dropout, self.attention_backend

    def layer_norm(self) -> LayerNorm:
        """A new LayerNorm over the layer's states."""
        return LayerNorm(self.embed_dim, eps=self.layer_norm_eps)


class TransformerLayer(Layer):
    """Post-norm Transformer layer (Vaswani et al., 2017): each sub-layer, dropout, residual, LayerNorm."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.self_attn = SelfAttention(*shape.attention)
        self.self_attn_layer_norm = shape.layer_norm()
        self.fc1 = nn.Linear(shape.embed_dim, shape.ffn_embed_dim)
        self.fc2 = nn.Linear(shape.ffn_embed_dim, shape.embed_dim)
        self.final_layer_norm = shape.layer_norm()

    def forward(
        self, states: Tensor, bias: Optional[AttentionBias], wanted: Optional[WantedPositions] = None
    ) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D]; ``bias`` is added to the attention logits.

        With ``wanted`` the result is what the full layer gives there, <float>[M, D], and ``bias`` is for them.
        """
        attended = self.self_attn(states, bias, wanted)
        if wanted is not None:
            states = wanted.take(states)
        states = self.self_attn_layer_norm(add_dropped(states, attended, self.dropout, self.training))
        transformed = self.fc2(F.gelu(self.fc1(states)))
        return self.final_layer_norm(add_dropped(states, transformed, self.dropout, self.training))


def run_layers(
    layers: nn.ModuleList,
    states: Tensor,
    bias: Optional[AttentionBias],
    wanted: Optional[WantedPositions] = None,
    wanted_bias: Optional[AttentionBias] = None,
) -> List[Tensor]:
    """Apply layers one after another.

    Args:
        layers: L of them.
        states: <float>[B, S, D].
        bias: added to the attention logits.
        wanted: the result of the last layer is wanted for these alone, <float>[M, D].
        wanted_bias: added to their attention logits.

    Returns:
        the states before the first layer and after each, L + 1 times <float>[B, S, D].
    """
    all_states = [states]
    for number, layer in enumerate(layers, 1):
        if wanted is not None and number == len(layers):
            all_states.append(layer(all_states[-1], wanted_bias, wanted))
        else:
            all_states.append(layer(all_states[-1], bias))
    return all_states
