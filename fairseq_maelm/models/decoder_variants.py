"""The decoders of the paper's Table 2 with cross-attention to the encoder's output; ``build_decoder`` chooses."""

from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.batch import Layout
from fairseq_maelm.models.decoder import MaelmDecoder, SharedDecoder, hidden_except
from fairseq_maelm.models.encoder import EncoderOutput, MaelmEncoder
from fairseq_maelm.modules.attention.context import AttentionContext, Tokens, Visibility
from fairseq_maelm.modules.attention.layers import LayerConfig, Memory, memories
from fairseq_maelm.modules.attention.rotary import Rotation, rotations
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.output_positions import OutputPositions, predicted_positions


class SelfCrossDecoder(MaelmDecoder):
    """A decoder whose layers have cross-attention after self-attention."""

    attention = "self_cross"
    reads_encoder = True

    def memories(
        self,
        visible: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        queries: Tokens,
        outputs: OutputPositions | None = None,
    ) -> list[Memory]:
        """Return each layer's keys and values of the encoder states, for ``queries``, which may be ``outputs`` only.

        Padding and the encoder states that the decoder must not read are hidden.
        """
        states, tokens = visible.states, visible.tokens
        hidden = None
        if layout is None:
            positions = torch.arange(tokens.shape[1], device=states.device)[None]
            hidden = tokens.eq(encoder.padding_idx)
        else:
            positions = _original_positions(layout)
            if len(layout["decoder_rows"]) != tokens.numel() or in_graphs(self.layers, states):
                hidden = hidden_except(layout["decoder_rows"], *tokens.shape)
        keys = rotations(positions, self.layer_config.rotary_bases, self.layer_config.head_dim, states)
        context = AttentionContext(Tokens(positions, keys), Visibility(hidden=hidden), None, queries, outputs)
        layers: list[Any] = [layer.cross_attn for layer in self.layers]
        return memories(layers, self.input_projection(states), context)


def _original_positions(layout: Layout) -> Tensor:
    """Return the original positions <int64>[B, S] of the encoder states that the decoder may read.

    The encoder's own positions may differ: with ``--encoder-positions consecutive`` they have no gaps.
    """
    positions, original = layout["positions"], layout["decoder_slots"] % layout["padded_length"]
    return positions.flatten().index_copy(0, layout["decoder_rows"], original).view_as(positions)


class CausalCrossDecoder(SelfCrossDecoder):
    """A decoder that predicts every token from the encoder's output and the tokens before it, as in BART."""

    attention = "causal_cross"
    autoregressive = True

    def reassemble(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return the token embeddings of the full sequence <float>[B, T, D], shifted right, with </s> first."""
        tokens = visible.tokens if layout is None else layout["full_tokens"]
        shifted = torch.cat([tokens.new_full((len(tokens), 1), encoder.dictionary.eos()), tokens[:, :-1]], dim=1)
        return encoder.embed_tokens(shifted)

    def forward(
        self,
        full: Tensor,
        visible: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        outputs: OutputPositions | None = None,
    ) -> Tensor:
        """See ``MaelmDecoder``; every token is predicted, so ``outputs`` save no computation."""
        decoded = super().forward(full, visible, encoder, layout)
        return decoded if outputs is None else outputs.take(decoded)

    def lengths(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor | None:
        """Return None: padding is on the right, so causal attention already hides it."""
        return None


class CrossDecoder(SelfCrossDecoder):
    """A decoder with cross-attention only; without self-attention, every layer computes predicted positions alone."""

    attention = "cross"

    def reassemble(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return the input at predicted positions <float>[M, D]; without a layout, all encoder states <float>[B, S, D].

        Rows are mask embeddings, except for encoder states at the layout's ``seen_outputs``.
        """
        if layout is None:
            return visible.states
        masks = visible.mask_embedding.to(visible.states.dtype)
        rows = masks.expand(len(layout["predicted_slots"]), -1)
        if not len(layout["seen_outputs"]):
            return rows
        states = visible.states.flatten(0, 1).index_select(0, layout["seen_rows"])
        return rows.index_copy(0, layout["seen_outputs"], states)

    def forward(
        self,
        full: Tensor,
        visible: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        outputs: OutputPositions | None = None,
    ) -> Tensor:
        """Decode the result of ``reassemble`` to <float>[M, decoder width] or <float>[B, S, decoder width]."""
        if layout is None:
            positions = torch.arange(full.shape[1], device=full.device)
        else:
            positions = layout["predicted_slots"] % layout["padded_length"]
            outputs = predicted_positions(layout)
        states = self.embed(full, positions, encoder)
        queries = rotations(positions[None], self.layer_config.rotary_bases, self.layer_config.head_dim, states)
        if layout is not None:
            queries = {base: Rotation(*(table[0] for table in rotation)) for base, rotation in queries.items()}
        memories = self.memories(visible, encoder, layout, Tokens(rotations=queries), outputs)
        for layer, memory in zip(self.layers, memories):
            states = layer(states, None, memory)
        return self.final_layer_norm(states)


_DECODERS = {each.attention: each for each in (MaelmDecoder, SelfCrossDecoder, CausalCrossDecoder, CrossDecoder)}


def build_decoder(config: Any) -> MaelmDecoder | SharedDecoder | None:
    """Build the decoder of a complete configuration, its own layers without dropout (appendix C); None for 0 layers."""
    if not config.decoder_layers:
        return None
    if str(config.decoder_attention) == SharedDecoder.attention:
        return SharedDecoder(config.decoder_layers, config.encoder_layers)
    bases = (config.rotary_base,) if config.decoder_positions == "rotary" else ()
    return _DECODERS[str(config.decoder_attention)](
        layers=config.decoder_layers,
        layer_config=LayerConfig(
            embed_dim=config.decoder_embed_dim,
            ffn_embed_dim=config.decoder_ffn_embed_dim,
            attention_heads=config.decoder_attention_heads,
            attention_backend=str(config.attention),
            **EncoderOptions.of(config).of_layers,
            rotary_bases=bases,
        ),
        max_positions=None if config.share_decoder_positions or bases else config.max_positions,
        input_dim=config.encoder_embed_dim,
    )
