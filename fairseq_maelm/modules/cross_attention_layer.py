"""The layer of a decoder that reads the encoder's output."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.cross import CrossAttention
from fairseq_maelm.modules.attention.layers import SelfAttention
from fairseq_maelm.modules.dropout import add_dropped
from fairseq_maelm.modules.execution import Layer
from fairseq_maelm.modules.transformer import LayerShape
from fairseq_maelm.modules.wanted import WantedPositions

# What a decoder may attend to; checkpoints hold an attention as its place here.
DECODER_ATTENTION = ("self", "self_cross", "causal_cross", "cross")


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
            self.self_attn = SelfAttention(*shape.attention)
            self.self_attn_layer_norm = shape.layer_norm()
        self.cross_attn = CrossAttention(*shape.attention)
        self.cross_attn_layer_norm = shape.layer_norm()
        self.fc1 = nn.Linear(shape.embed_dim, shape.ffn_embed_dim)
        self.fc2 = nn.Linear(shape.ffn_embed_dim, shape.embed_dim)
        self.final_layer_norm = shape.layer_norm()

    def forward(
        self,
        states: Tensor,
        bias: Optional[AttentionBias],
        memory: Tensor,
        memory_bias: Optional[AttentionBias],
        queries: Optional[WantedPositions] = None,
    ) -> Tensor:
        """<float>[B, T, D] to <float>[B, T, D].

        Args:
            states: <float>[B, T, D].
            bias: added to the logits of self-attention.
            memory: <float>[B, S, D] the encoder's output.
            memory_bias: added to the logits of cross-attention.
            queries: the result is wanted for these alone, <float>[M, D]. A layer without self-attention reads no other
                states either and takes <float>[M, D].
        """
        if self.self_attn is not None:
            attended = self.self_attn(states, bias, queries)
            if queries is not None:
                states = queries.take(states)
            states = self.self_attn_layer_norm(add_dropped(states, attended, self.dropout, self.training))
        attended = self.cross_attn(states, memory, memory_bias, queries)
        states = self.cross_attn_layer_norm(add_dropped(states, attended, self.dropout, self.training))
        transformed = self.fc2(F.gelu(self.fc1(states)))
        return self.final_layer_norm(add_dropped(states, transformed, self.dropout, self.training))
