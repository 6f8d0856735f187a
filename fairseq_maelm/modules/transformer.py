"""Transformer layers, and running a stack of them."""

from typing import List, NamedTuple, Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention import CrossAttention, SelfAttention
from fairseq_maelm.modules.execution import Layer
from fairseq_maelm.modules.precision import LayerNorm

# What a decoder may attend to; checkpoints hold an attention as its place here.
DECODER_ATTENTION = ("self", "self_cross", "causal_cross", "cross")


class LayerShape(NamedTuple):
    """The numbers that define a layer.

    Attributes:
        embed_dim: D.
        ffn_embed_dim: width of the feed-forward network.
        attention_heads: H, divides D.
        dropout: on the outputs of both sub-layers, in [0, 1).
        attention_dropout: on the attention weights, in [0, 1).
    """

    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int
    dropout: float
    attention_dropout: float


class TransformerLayer(Layer):
    """Post-norm Transformer layer (Vaswani et al., 2017): each sub-layer, dropout, residual, LayerNorm."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.self_attn = SelfAttention(shape.embed_dim, shape.attention_heads, shape.attention_dropout)
        self.self_attn_layer_norm = LayerNorm(shape.embed_dim)
        self.fc1 = nn.Linear(shape.embed_dim, shape.ffn_embed_dim)
        self.fc2 = nn.Linear(shape.ffn_embed_dim, shape.embed_dim)
        self.final_layer_norm = LayerNorm(shape.embed_dim)

    def forward(self, states: Tensor, bias: Optional[Tensor]) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D]; ``bias`` is added to the attention logits."""
        attended = F.dropout(self.self_attn(states, bias), self.dropout, self.training)
        states = self.self_attn_layer_norm(states + attended)
        transformed = F.dropout(self.fc2(F.gelu(self.fc1(states))), self.dropout, self.training)
        return self.final_layer_norm(states + transformed)


class DecoderLayer(Layer):
    """Post-norm layer with cross-attention to the encoder's output, as in Vaswani et al. (2017).

    Args:
        shape: of the layer.
        self_attention: whether the layer's own input is attended to as well, before the encoder's output.
    """

    def __init__(self, shape: LayerShape, self_attention: bool) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.self_attn: Optional[SelfAttention] = None
        if self_attention:
            self.self_attn = SelfAttention(shape.embed_dim, shape.attention_heads, shape.attention_dropout)
            self.self_attn_layer_norm = LayerNorm(shape.embed_dim)
        self.cross_attn = CrossAttention(shape.embed_dim, shape.attention_heads, shape.attention_dropout)
        self.cross_attn_layer_norm = LayerNorm(shape.embed_dim)
        self.fc1 = nn.Linear(shape.embed_dim, shape.ffn_embed_dim)
        self.fc2 = nn.Linear(shape.ffn_embed_dim, shape.embed_dim)
        self.final_layer_norm = LayerNorm(shape.embed_dim)

    def forward(self, states: Tensor, bias: Optional[Tensor], memory: Tensor, memory_bias: Optional[Tensor]) -> Tensor:
        """<float>[B, T, D] to <float>[B, T, D].

        Args:
            states: <float>[B, T, D].
            bias: added to the logits of self-attention.
            memory: <float>[B, S, D] the encoder's output.
            memory_bias: added to the logits of cross-attention.
        """
        if self.self_attn is not None:
            attended = F.dropout(self.self_attn(states, bias), self.dropout, self.training)
            states = self.self_attn_layer_norm(states + attended)
        attended = F.dropout(self.cross_attn(states, memory, memory_bias), self.dropout, self.training)
        states = self.cross_attn_layer_norm(states + attended)
        transformed = F.dropout(self.fc2(F.gelu(self.fc1(states))), self.dropout, self.training)
        return self.final_layer_norm(states + transformed)


def run_layers(layers: nn.ModuleList, states: Tensor, bias: Optional[Tensor]) -> List[Tensor]:
    """Apply layers one after another.

    Returns:
        the states before the first layer and after each, L + 1 times <float>[B, S, D].
    """
    all_states = [states]
    for layer in layers:
        all_states.append(layer(all_states[-1], bias))
    return all_states
