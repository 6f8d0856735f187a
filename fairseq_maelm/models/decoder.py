"""The shallow decoder of pretraining, in all forms of the paper's Table 2."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from fairseq_maelm.modules.attention import attention_bias, causal_bias
from fairseq_maelm.modules.precision import LayerNorm
from fairseq_maelm.modules.transformer import DECODER_ATTENTION, DecoderLayer, LayerShape, TransformerLayer, run_layers

# What ``MaelmDecoder.identity`` holds: settings that the parameters' shapes do not show.
DECODER_IDENTITY_FIELDS = ("decoder attention heads", "decoder attention")


class Memory(NamedTuple):
    """The encoder's output as cross-attention reads it.

    Attributes:
        states: <float>[B, S, D] of the encoder's last layer.
        hidden: <bool>[B, S] True where nothing may be read: padding, and masked positions whose states the decoder
            must not get; None where nothing is hidden.
    """

    states: Tensor
    hidden: Optional[Tensor]


class MaelmDecoder(nn.Module):
    """Decoder of pretraining, thrown away afterwards (section 3).

    It has no relative bias and, by default, no dropout and a position table of its own, as the authors' code.

    Args:
        layers: number of layers, at least 1.
        shape: of each layer.
        max_positions: size of the own position table, or None to use the encoder's, given to ``forward``.
        attention: "self" (MAE-LM), or with cross-attention to the encoder's output "self_cross", "causal_cross" (from
            left to right) or "cross" (no self-attention).
        input_dim: width of the encoder; where the decoder's differs, a linear projection stands between them.
    """

    def __init__(
        self, layers: int, shape: LayerShape, max_positions: Optional[int], attention: str, input_dim: int
    ) -> None:
        super().__init__()
        self.attention = attention
        self.input_projection = None if input_dim == shape.embed_dim else nn.Linear(input_dim, shape.embed_dim)
        self.embed_positions = None if max_positions is None else nn.Embedding(max_positions, shape.embed_dim)
        self.layernorm_embedding = LayerNorm(shape.embed_dim)
        self.layers = nn.ModuleList(
            TransformerLayer(shape) if attention == "self" else DecoderLayer(shape, attention != "cross")
            for _ in range(layers)
        )
        identity = [shape.attention_heads, DECODER_ATTENTION.index(attention)]
        self.register_buffer("identity", torch.tensor(identity, dtype=torch.int64))

    @property
    def reads_encoder(self) -> bool:
        """Whether ``forward`` needs a memory."""
        return self.attention != "self"

    @property
    def autoregressive(self) -> bool:
        """Whether each token is predicted from those before it; the input is then the sequence, shifted right."""
        return self.attention == "causal_cross"

    def forward(
        self, full: Tensor, shared_positions: Tensor, padding: Optional[Tensor], memory: Optional[Memory] = None
    ) -> Tensor:
        """Decode reassembled sequences.

        Args:
            full: <float>[B, T, D] encoder states and mask embeddings at their original positions, or the embeddings of
                the shifted sequence.
            shared_positions: <float>[P, D] the encoder's position table, read only when the decoder has none.
            padding: <bool>[B, T] True at padding, or None when there is none.
            memory: the encoder's output, for cross-attention.

        Returns:
            <float>[B, T, width of the decoder].
        """
        if self.input_projection is not None:
            full = self.input_projection(full)
        table = shared_positions if self.embed_positions is None else self.embed_positions.weight
        states = self.layernorm_embedding(full + table[: full.shape[1]])
        if self.autoregressive:
            # Padding stands on the right, where no token looks.
            bias: Optional[Tensor] = causal_bias(full.shape[1], states)
        else:
            bias = attention_bias(None, padding, states.dtype)
        if memory is None:
            return run_layers(self.layers, states, bias)[-1]
        return self._run_with_memory(states, bias, memory)

    def _run_with_memory(self, states: Tensor, bias: Optional[Tensor], memory: Memory) -> Tensor:
        encoded = memory.states if self.input_projection is None else self.input_projection(memory.states)
        memory_bias = attention_bias(None, memory.hidden, states.dtype)
        for layer in self.layers:
            states = layer(states, bias, encoded, memory_bias)
        return states
