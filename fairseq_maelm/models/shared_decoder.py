"""A decoder without weights: layers of the encoder predict the masked tokens."""

import math

import torch
from torch import Tensor, nn

from fairseq_maelm.batch import Layout
from fairseq_maelm.models.encoder import EncoderOutput, MaelmEncoder
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.attention.streams import TwoStreams, hidden_except, join
from fairseq_maelm.modules.output_positions import OutputPositions, unseen_outputs, unseen_positions


class SharedDecoder(nn.Module):
    """Some of the encoder's layers, applied to visible tokens and to masks.

    They are spread evenly over the encoder, up to its last layer. Masks enter at the first and skip those between. They
    read all tokens, but no visible token reads a mask, so that the encoder computes what it computes without masks.
    Predicted tokens that the encoder sees have their own states.

    Args:
        layers: number n of these layers, at least 1.
        encoder_layers: number L of the encoder's layers, at least n.

    Attributes:
        attention: the value of ``--decoder-attention``.
        reads_encoder: True, because masks attend to the states of visible tokens.
        autoregressive: False.
        layers: empty, because the layers are the encoder's.
        with_masks: indices of the n layers, ascending.
    """

    attention = "shared"
    reads_encoder = True
    autoregressive = False

    def __init__(self, layers: int, encoder_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.with_masks = [math.ceil(number * encoder_layers / layers) - 1 for number in range(1, layers + 1)]

    def reassemble(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return embeddings of the masks that the encoder does not see; without a layout, the encoder's states.

        The shape is <float>[M - K, D] if K of M predicted tokens are visible, and <float>[B, S, D] without a layout.
        """
        if layout is None:
            return visible.states
        positions = unseen_positions(layout).indices % layout["padded_length"]
        return encoder.add_positions(visible.mask_embedding.expand(len(positions), -1), positions)

    def forward(
        self,
        full: Tensor,
        visible: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Decode the result of ``reassemble``: <float>[M, D], or <float>[B, S, D] without a layout.

        ``visible`` are the states before the first of the layers.
        """
        first, last = self.with_masks[0], self.with_masks[-1]
        layers = encoder.layers[first:]
        if layout is None:
            states = full
            for layer in layers:
                states = layer(states, visible.bias)
            return encoder.final_layer_norm(states)
        streams = self._streams(visible, encoder, layout, full)
        rows = join(visible.states, full)
        keeps = len(layout["seen_outputs"]) > 0
        for number, layer in enumerate(layers, first):
            if number in self.with_masks:
                rows = layer(rows, streams, streams if number == last and not keeps else None)
                continue
            if number - 1 in self.with_masks:
                seen, masks = streams.split(rows)
            seen = layer(seen, visible.bias)
            if number + 1 in self.with_masks:
                rows = join(seen, masks)
        if keeps:
            own = rows.index_select(0, layout["seen_rows"])
            outputs = rows.new_empty(len(layout["predicted_slots"]), rows.shape[1])
            outputs = outputs.index_copy(0, unseen_outputs(layout), streams.take(rows))
            rows = outputs.index_copy(0, layout["seen_outputs"], own)
        return encoder.final_layer_norm(rows)

    def _streams(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout, masks: Tensor) -> TwoStreams:
        config, tokens, masks_at = encoder.layer_config, visible.tokens, unseen_positions(layout)
        length, places = layout["padded_length"], masks_at.indices % layout["padded_length"]
        of_distance = None if visible.bias is None else visible.bias.of_distance
        # A spare output at padding is where the last token is; otherwise a window could hide all tokens from it.
        own_places = masks_at.pad(places, len(tokens)).minimum(layout["lengths"][:, None] - 1)
        own_hidden = hidden_except(masks_at.padded[: masks_at.wanted], *own_places.shape)
        masks_bias = AttentionBias(
            of_distance,
            torch.cat([layout["positions"], own_places], dim=1),
            hidden=torch.cat([hidden_except(layout["decoder_rows"], *tokens.shape), own_hidden], dim=1),
            query_positions=own_places,
        )
        positions = torch.arange(length, device=places.device)[None]
        full_bias = AttentionBias(of_distance, positions, layout["lengths"], max_positions=encoder.longest)
        of_rows = torch.cat([layout["positions"].flatten(), places])[None]
        turns = rotations(of_rows, config.rotary_bases, config.head_dim, masks)
        rows = layout["decoder_rows"], layout["decoder_slots"]
        return TwoStreams(len(tokens), tokens.shape[1], visible.bias, masks_at, masks_bias, full_bias, turns, *rows)
