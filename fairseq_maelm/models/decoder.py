"""The shallow decoder of pretraining in all forms of the paper's Table 2, and its substitute without layers."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_maelm.batch import Layout
from fairseq_maelm.models.encoder import EncoderOutput, MaelmEncoder
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.output_positions import OutputPositions
from fairseq_maelm.modules.reassemble import reassemble
from fairseq_maelm.modules.transformer import DECODER_ATTENTION, TransformerLayer, run_layers

# The unit of the rotary base in ``MaelmDecoder.identity``, above the kind of attention.
_ABOVE_ATTENTION = 2**16


class Memory(NamedTuple):
    """The encoder's output as cross-attention reads it.

    Attributes:
        states: <float>[B, S, D] of the encoder's last layer.
        positions: <int64>[B or 1, S] positions of the tokens.
        hidden: <bool>[B, S] True at padding and at masked positions, which the decoder must not read; None where
            nothing is hidden.
    """

    states: Tensor
    positions: Tensor
    hidden: Tensor | None


def encoder_memory(
    encoded: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None, always_hides: bool = False
) -> Memory:
    """Return the encoder's output for cross-attention, restricted to the states that the decoder's input contains.

    With ``always_hides`` there is a mask even where nothing is hidden.
    """
    states, tokens = encoded.states, encoded.tokens
    if layout is None:
        positions = torch.arange(tokens.shape[1], device=states.device)[None]
        return Memory(states, positions, tokens.eq(encoder.padding_idx))
    if len(layout["visible_rows"]) == tokens.numel() and not always_hides:
        return Memory(states, layout["positions"], None)
    hidden = torch.ones(tokens.numel(), dtype=torch.bool, device=states.device)
    hidden = hidden.index_fill(0, layout["visible_rows"], False).view(tokens.shape)
    return Memory(states, layout["positions"], hidden)


def full_sequences(encoded: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
    """Return encoder states and mask embeddings at their original positions <float>[B, T, D]."""
    if layout is None:
        return encoded.states
    return reassemble(encoded.states, encoder.embed_tokens.weight[encoder.mask_index], layout)


class NoDecoder:
    """The decoder without layers: the LM head reads the encoder's states, as in plain MLM."""

    def encoder_output_at(self, output_at: OutputPositions | None, layout: Layout | None) -> OutputPositions | None:
        """Return the positions that the encoder's last layer must compute: the predicted ones if it sees all tokens."""
        return output_at if layout is not None and layout["all_visible"] else None

    def reassemble(self, encoded: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return full sequences <float>[B, T, D], or <float>[M, D] where the encoder computed only these."""
        return encoded.states if encoded.output_at is not None else full_sequences(encoded, encoder, layout)

    def __call__(
        self,
        full: Tensor,
        encoded: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Return the input, or its rows <float>[M, D] at the output positions."""
        return full if output_at is None or encoded.output_at is not None else output_at.take(full)


NO_DECODER = NoDecoder()


class MaelmDecoder(nn.Module):
    """The decoder of pretraining, which is thrown away afterwards (section 3).

    As in the authors' code it has no relative bias and, by default, no dropout and separate position embeddings.

    Args:
        layers: number of layers, at least 1.
        shape: sizes of each layer.
        max_positions: size of the decoder's table of positions. None for the encoder's table, or for rotary positions
            if the shape has them.
        attention: "self" (MAE-LM); or with cross-attention to the encoder's output "self_cross", "causal_cross"
            (self-attention from left to right) or "cross" (without self-attention).
        input_dim: width of the encoder. If the decoder's differs, a linear layer projects one to the other.
    """

    def __init__(
        self, layers: int, shape: LayerConfig, max_positions: int | None, attention: str, input_dim: int
    ) -> None:
        super().__init__()
        self.attention, self.shape = attention, shape
        self.input_projection = None if input_dim == shape.embed_dim else nn.Linear(input_dim, shape.embed_dim)
        self.embed_positions = None if max_positions is None else nn.Embedding(max_positions, shape.embed_dim)
        self.layernorm_embedding = shape.layer_norm()
        self.layernorm_embedding.single = shape.modern
        self.layers = nn.ModuleList(TransformerLayer(shape, number, attention) for number in range(layers))
        self.final_layer_norm = shape.layer_norm() if shape.modern else None
        base = shape.rotary_bases[0] if shape.rotary_bases else 0
        identity = [shape.attention_heads, DECODER_ATTENTION.index(attention) + base * _ABOVE_ATTENTION]
        self.register_buffer("identity", torch.tensor(identity, dtype=torch.int64))

    @property
    def reads_encoder(self) -> bool:
        """True if the decoder attends to the encoder's output."""
        return self.attention != "self"

    @property
    def autoregressive(self) -> bool:
        """True if each token is predicted from those before it; the input is then the sequence, shifted right."""
        return self.attention == "causal_cross"

    def encoder_output_at(self, output_at: OutputPositions | None, layout: Layout | None) -> OutputPositions | None:
        """Return None: the decoder reads the encoder's states at all positions."""
        return None

    def reassemble(self, encoded: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return the input of ``forward`` <float>[B, T, D].

        It has encoder states and mask embeddings at their original positions. A decoder from left to right gets the
        embeddings of the sequence itself, shifted right after </s> as in BART.
        """
        if not self.autoregressive:
            return full_sequences(encoded, encoder, layout)
        tokens = encoded.tokens if layout is None else layout["full_tokens"]
        shifted = torch.cat([tokens.new_full((len(tokens), 1), encoder.dictionary.eos()), tokens[:, :-1]], dim=1)
        return encoder.embed_tokens(shifted)

    def forward(
        self,
        full: Tensor,
        encoded: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Decode the result of ``reassemble``: <float>[B, T, decoder width], or [M, decoder width] at ``output_at``.

        A left-to-right decoder predicts every token, so ``output_at`` saves no computation there.
        """
        states = self._embed(full, encoder)
        # Padding is on the right, and a decoder from left to right never attends to the right.
        lengths = None if self.autoregressive else self._lengths(encoded, encoder, layout)
        bias = self._bias(torch.arange(full.shape[1], device=full.device)[None], lengths, states)
        compiled = in_graphs(self.layers, states)
        if not self.reads_encoder:
            decoded = run_layers(self.layers, states, bias, output_at, bias)[-1]
        else:
            decoded = self._run_with_memory(states, bias, encoder_memory(encoded, encoder, layout, compiled), output_at)
        if self.final_layer_norm is not None:
            decoded = self.final_layer_norm(decoded)
        return output_at.take(decoded) if output_at is not None and self.autoregressive else decoded

    def _lengths(self, encoded: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor | None:
        """Return the lengths of the full sequences <int64>[B], or None where there is no padding to hide."""
        if layout is None:
            return encoded.tokens.ne(encoder.padding_idx).sum(dim=1)
        hides = layout["decoder_padded"] or in_graphs(self.layers, encoded.states)
        return layout["lengths"] if hides else None

    def _bias(self, positions: Tensor, lengths: Tensor | None, states: Tensor) -> AttentionBias:
        """Return the bias of self-attention; ``states`` give the dtype of rotations."""
        turns = rotations(positions, self.shape.rotary_bases, self.shape.head_dim, states)
        return AttentionBias(lengths=lengths, causal=self.autoregressive, rotations=turns, padded_to=states.shape[1])

    def _embed(self, full: Tensor, encoder: MaelmEncoder) -> Tensor:
        """Return the first layer's input: the decoder's input at its width, with positions."""
        if self.input_projection is not None:
            full = self.input_projection(full)
        if not self.shape.rotary_bases:
            table = self.embed_positions or encoder.embed_positions
            assert table is not None
            full = full + table.weight[: full.shape[1]]
        return self.layernorm_embedding(full)

    def _run_with_memory(
        self, states: Tensor, bias: AttentionBias, memory: Memory, output_at: OutputPositions | None
    ) -> Tensor:
        encoded = memory.states if self.input_projection is None else self.input_projection(memory.states)
        turns = rotations(memory.positions, self.shape.rotary_bases, self.shape.head_dim, states)
        memory_bias = AttentionBias(hidden=memory.hidden, rotations=turns)
        last = None if self.autoregressive else output_at
        # Self-attention reads all positions, so only the last layer can leave some out.
        everywhere = last if self.attention == "cross" else None
        if everywhere is not None:
            states = everywhere.take(states)
        for layer in self.layers[:-1]:
            states = layer(states, bias, everywhere, encoded, memory_bias)
        return self.layers[-1](states, bias, last, encoded, memory_bias)


def decoder_settings(identity: Tensor) -> dict[str, Any]:
    """Unpack ``MaelmDecoder.identity``: the settings that no weight's shape shows."""
    heads, attention = identity.tolist()
    base, attention = divmod(attention, _ABOVE_ATTENTION)
    kind = DECODER_ATTENTION[attention] if attention < len(DECODER_ATTENTION) else attention
    return {"decoder attention heads": heads, "decoder attention": kind, "rotary base of the decoder": base or "none"}


def build_decoder(config: Any) -> MaelmDecoder | None:
    """Build the decoder of a complete configuration, without dropout (appendix C); None if it has no layers."""
    if not config.decoder_layers:
        return None
    bases = (config.rotary_base,) if config.decoder_positions == "rotary" else ()
    shape = LayerConfig(
        embed_dim=config.decoder_embed_dim,
        ffn_embed_dim=config.decoder_ffn_embed_dim,
        attention_heads=config.decoder_attention_heads,
        attention_backend=str(config.attention),
        layer_norm_eps=config.layer_norm_eps,
        modern=config.layer == "modern",
        rotary_bases=bases,
    )
    positions = None if config.share_decoder_positions or bases else config.max_positions
    return MaelmDecoder(
        config.decoder_layers, shape, positions, str(config.decoder_attention), config.encoder_embed_dim
    )
