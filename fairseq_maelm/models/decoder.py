"""The shallow decoder of pretraining, in all forms of the paper's Table 2."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from fairseq_maelm.batch import Layout
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.queries import Queries
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


def encoder_memory(visible: Tensor, src_tokens: Tensor, padding_idx: int, layout: Optional[Layout]) -> Memory:
    """The encoder's output for a decoder with cross-attention.

    A state that does not enter the decoder's input is not to be read by cross-attention either.

    Args:
        visible: <float>[B, S, D] the encoder's last states.
        src_tokens: <int64>[B, S] what they were computed from.
        padding_idx: the padding symbol.
        layout: says which states enter the decoder; without it, all but padding.
    """
    if layout is None:
        return Memory(visible, src_tokens.eq(padding_idx))
    if len(layout["visible_rows"]) == src_tokens.numel():
        return Memory(visible, None)
    hidden = torch.ones(src_tokens.numel(), dtype=torch.bool, device=visible.device)
    return Memory(visible, hidden.index_fill(0, layout["visible_rows"], False).view(src_tokens.shape))


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
        self.layernorm_embedding = shape.layer_norm()
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
        self,
        full: Tensor,
        shared_positions: Tensor,
        padding: Optional[Tensor],
        memory: Optional[Memory] = None,
        queries: Optional[Queries] = None,
    ) -> Tensor:
        """Decode reassembled sequences.

        Args:
            full: <float>[B, T, D] encoder states and mask embeddings at their original positions, or the embeddings of
                the shifted sequence.
            shared_positions: <float>[P, D] the encoder's position table, read only when the decoder has none.
            padding: <bool>[B, T] True at padding, or None when there is none.
            memory: the encoder's output, for cross-attention.
            queries: the result is wanted for these alone. Given to a decoder from left to right, which predicts every
                token, they save nothing.

        Returns:
            <float>[B, T, width of the decoder], or [M, width of the decoder] for ``queries``.
        """
        if self.input_projection is not None:
            full = self.input_projection(full)
        table = shared_positions if self.embed_positions is None else self.embed_positions.weight
        states = self.layernorm_embedding(full + table[: full.shape[1]])
        if self.autoregressive:
            # Padding stands on the right, where no token looks.
            bias: Optional[AttentionBias] = AttentionBias(causal=True)
        else:
            bias = AttentionBias(hidden=padding)
        if memory is None:
            return run_layers(self.layers, states, bias, queries, bias)[-1]
        if self.autoregressive:
            decoded = self._run_with_memory(states, bias, memory, None)
            return decoded if queries is None else queries.take(decoded)
        return self._run_with_memory(states, bias, memory, queries)

    def _run_with_memory(
        self, states: Tensor, bias: Optional[AttentionBias], memory: Memory, queries: Optional[Queries]
    ) -> Tensor:
        encoded = memory.states if self.input_projection is None else self.input_projection(memory.states)
        memory_bias = AttentionBias(hidden=memory.hidden)
        everywhere = queries
        if self.attention != "cross":
            # Self-attention reads all positions, so that only the last layer can leave some out.
            everywhere = None
        elif queries is not None:
            states = queries.take(states)
        for layer in self.layers[:-1]:
            states = layer(states, bias, encoded, memory_bias, everywhere)
        return self.layers[-1](states, bias, encoded, memory_bias, queries)


def build_decoder(config: Any) -> Optional[MaelmDecoder]:
    """The decoder of a complete configuration; None where it has no layers. It has no dropout (appendix C)."""
    if not config.decoder_layers:
        return None
    sizes = (config.decoder_embed_dim, config.decoder_ffn_embed_dim, config.decoder_attention_heads)
    shape = LayerShape(*sizes, 0.0, 0.0, str(config.attention), config.layer_norm_eps)
    positions = None if config.share_decoder_positions else config.max_positions
    return MaelmDecoder(
        config.decoder_layers, shape, positions, str(config.decoder_attention), config.encoder_embed_dim
    )
