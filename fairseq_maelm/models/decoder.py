"""MAE-LM's two decoders: the paper's own layers (section 3), and layers that the decoder shares with the encoder."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_maelm.batch import Layout
from fairseq_maelm.models.encoder import EncoderInput, EncoderOutput, MaelmEncoder
from fairseq_maelm.modules.attention import streams
from fairseq_maelm.modules.attention.context import AttentionContext, MaskStream, Tokens, Visibility
from fairseq_maelm.modules.attention.layers import LayerConfig, Memory
from fairseq_maelm.modules.attention.rotary import Rotation, rotations
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.output_positions import OutputPositions, unseen_outputs, unseen_positions
from fairseq_maelm.modules.transformer import TransformerLayer, run_layers


def reassemble(visible: Tensor, mask_embedding: Tensor, layout: Layout) -> Tensor:
    """Return states <float>[B, T, D]: ``visible`` [B, S, D] at their original positions, mask embeddings [D] elsewhere.

    Padding gets the mask embedding too, which nothing reads.
    """
    batch, _, width = visible.shape
    slots = batch * layout["padded_length"]
    states = visible.reshape(-1, width)
    if layout["encoder_padded"] or len(states) != len(layout["decoder_rows"]):
        states = states.index_select(0, layout["decoder_rows"])
    # The embedding is in single precision even if the states are in half precision.
    full = mask_embedding.to(states.dtype).expand(slots, width).index_copy(0, layout["decoder_slots"], states)
    return full.view(batch, layout["padded_length"], width)


class MaelmDecoder(nn.Module):
    """The decoder, which is discarded after pretraining (section 3).

    As in the authors' code, it has no relative bias, no dropout and, by default, its own position embeddings. If
    ``max_positions`` is None, it uses the encoder's table or rotary positions. If its width differs from the encoder's,
    ``input_dim``, a linear layer projects the encoder states.
    """

    attention = "self"  # the value of ``--decoder-attention``
    reads_encoder = False  # whether it attends to the encoder's output
    autoregressive = False  # whether each token is predicted from those before it

    def __init__(self, *, layers: int, layer_config: LayerConfig, max_positions: int | None, input_dim: int) -> None:
        super().__init__()
        self.layer_config = layer_config
        width = layer_config.embed_dim
        self.input_projection = nn.Identity() if input_dim == width else nn.Linear(input_dim, width)
        self.embed_positions = None if max_positions is None else nn.Embedding(max_positions, width)
        self.layernorm_embedding = layer_config.layer_norm(of_embeddings=True)
        self.layers = nn.ModuleList(TransformerLayer(layer_config, number, self.attention) for number in range(layers))
        self.final_layer_norm = layer_config.layer_norm() if layer_config.modern else nn.Identity()

    def reassemble(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor:
        """Return the input of ``forward`` <float>[B, T, D]: encoder states in place, mask embeddings elsewhere."""
        if layout is None:
            return visible.states
        return reassemble(visible.states, visible.mask_embedding, layout)

    def forward(
        self,
        full: Tensor,
        visible: EncoderOutput,
        encoder: MaelmEncoder,
        layout: Layout | None,
        outputs: OutputPositions | None = None,
    ) -> Tensor:
        """Decode the result of ``reassemble``: <float>[B, T, decoder width], or <float>[M, width] at ``outputs``."""
        positions = torch.arange(full.shape[1], device=full.device)
        states = self.embed(full, positions, encoder)
        context = self.context(positions, self.lengths(visible, encoder, layout), states)
        memories = self.memories(visible, encoder, layout, context.queries)
        return self.final_layer_norm(run_layers(self.layers, states, context, outputs, memories)[-1])

    def embed(self, rows: Tensor, positions: Tensor, encoder: MaelmEncoder) -> Tensor:
        """Return the first layer's input: rows <float>[..., D] projected to the decoder's width, plus positions."""
        rows = self.input_projection(rows)
        if not self.layer_config.rotary_bases:
            table = self.embed_positions or encoder.embed_positions
            assert table is not None
            rows = rows + table(positions)
        return self.layernorm_embedding(rows)

    def lengths(self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None) -> Tensor | None:
        """Return the lengths of the full sequences <int64>[B], or None where there is no padding to hide."""
        if layout is None:
            return visible.tokens.ne(encoder.padding_idx).sum(dim=1)
        hides = layout["decoder_padded"] or in_graphs(self.layers, visible.states)
        return layout["lengths"] if hides else None

    def context(self, positions: Tensor, lengths: Tensor | None, states: Tensor) -> AttentionContext:
        """Return who reads whom at positions <int64>[T]; ``states`` determine the dtype of rotations."""
        turns = rotations(positions[None], self.layer_config.rotary_bases, self.layer_config.head_dim, states)
        return AttentionContext(Tokens(positions[None], turns), Visibility(lengths, causal=self.autoregressive))

    def memories(
        self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None, queries: Tokens
    ) -> list[Memory] | None:
        """Return what the cross-attention of each layer lets ``queries`` read; None in this class."""
        return None


class VisibleAndPredicted(NamedTuple):
    """The result of ``SharedDecoder``."""

    # The input of the encoder's first layer <float>[B, S, D], then the states after each layer; only those before the
    # masks enter, if the last ones were not wanted.
    all_states: list[Tensor]
    predicted: Tensor  # <float>[M, D] states of the predicted tokens, or <float>[B, S, D] without a layout


class SharedDecoder(nn.Module):
    """A decoder without weights: some encoder layers also decode masks; real tokens never see a mask.

    These layers are spread evenly over the encoder, up to its last layer. Masks enter at the first and skip those
    between. In them, a mask reads all tokens of its sequence and all its masks. No visible token reads a mask, so the
    encoder computes what it computes without masks. Predicted tokens that the encoder sees have their own states.

    The result is that of ``encode`` and then ``decode_by_encoder`` in ``docs/maelm_in_one_file.py``. Here both run
    together, because a layer multiplies visible tokens and masks by the same matrices.
    """

    attention = "shared"
    reads_encoder = True  # masks attend to the states of visible tokens
    autoregressive = False

    def __init__(self, layers: int, encoder_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()  # empty, because the layers are the encoder's
        # The indices of the encoder's layers that also decode, ascending.
        self.decoding_layers = [math.ceil(number * encoder_layers / layers) - 1 for number in range(1, layers + 1)]

    def encode_and_decode(
        self, encoder: MaelmEncoder, src_tokens: Tensor, layout: Layout | None, wants_last: bool
    ) -> VisibleAndPredicted:
        """Encode the visible tokens <int64>[B, S] and decode the masks, in one pass through the encoder's layers.

        Without a layout there are no masks, and all tokens are predicted. The last states of the visible tokens are
        computed only if ``wants_last``, or if some of them are predicted.
        """
        if layout is None:
            encoded = encoder(src_tokens)
            return VisibleAndPredicted(encoded.all_states, encoded.states)
        first, last = self.decoding_layers[0], self.decoding_layers[-1]
        entry = encoder.embed(src_tokens, layout["positions"], layout["encoder_padded"])
        all_states = run_layers(encoder.layers[:first], entry.states, entry.context)
        outputs = unseen_positions(layout)
        positions = outputs.indices % layout["padded_length"]
        mask_states = encoder.add_positions(entry.mask_embedding.expand(len(positions), -1), positions)
        stream = self._mask_stream(encoder, entry, layout, outputs, positions)
        # If no state of a visible token is needed, the last layer returns rows of the masks alone.
        needs_visible = wants_last or len(layout["seen_outputs"]) > 0
        context = entry.context.with_mask_stream(stream)
        last_context = context if needs_visible else entry.context.with_mask_stream(stream._replace(alone=True))
        rows = streams.join(all_states[-1], mask_states)
        for number, layer in enumerate(encoder.layers[first:], first):
            if number in self.decoding_layers:
                rows = layer(rows, last_context if number == last else context)
            else:
                visible, mask_states = streams.split(rows, *src_tokens.shape)
                rows = streams.join(layer(visible, entry.context), mask_states)
            if wants_last:
                all_states.append(streams.split(rows, *src_tokens.shape)[0])
        if wants_last:
            all_states[-1] = encoder.final_layer_norm(all_states[-1])
        predicted = self._of_predicted(rows, layout) if needs_visible else rows
        return VisibleAndPredicted(all_states, encoder.final_layer_norm(predicted))

    def _of_predicted(self, rows: Tensor, layout: Layout) -> Tensor:
        """Select the predicted tokens <float>[M, D] of stream rows: masks, or tokens that the encoder sees."""
        masks = streams.split(rows, *layout["positions"].shape)[1]
        if not len(layout["seen_outputs"]):
            return masks
        predicted = rows.new_empty(len(layout["predicted_slots"]), rows.shape[1])
        predicted = predicted.index_copy(0, unseen_outputs(layout), masks)
        return predicted.index_copy(0, layout["seen_outputs"], rows.index_select(0, layout["seen_rows"]))

    def _mask_stream(
        self,
        encoder: MaelmEncoder,
        entry: EncoderInput,
        layout: Layout,
        outputs: OutputPositions,
        mask_positions: Tensor,
    ) -> MaskStream:
        """Decide what the masks at ``outputs``, which have positions <int64>[M - K], read: visible tokens and masks."""
        config, positions = encoder.layer_config, layout["positions"]
        of_rows = torch.cat([positions.flatten(), mask_positions])[None]
        turns = rotations(of_rows, config.rotary_bases, config.head_dim, entry.states)
        mask_turns = {
            base: Rotation(*(table[0, positions.numel() :] for table in rotation)) for base, rotation in turns.items()
        }
        # A spare output at padding is where the last token is; otherwise a window could hide all tokens from it.
        padded_positions = outputs.pad(mask_positions, len(positions)).minimum(layout["lengths"][:, None] - 1)
        relative_bias = entry.context.relative_bias
        context = AttentionContext(
            Tokens(torch.cat([positions, padded_positions], dim=1)),
            Visibility(hidden=_hidden_from_masks(layout, outputs)),
            relative_bias,
            Tokens(padded_positions, mask_turns),
            outputs,
        )
        slots = torch.arange(layout["padded_length"], device=positions.device)[None]
        full = Tokens(slots, max_positions=encoder.longest)
        full_context = AttentionContext(full, Visibility(layout["lengths"]), relative_bias, outputs=outputs)
        return MaskStream(context, full_context, turns, layout["decoder_rows"], layout["decoder_slots"])


def _hidden_from_masks(layout: Layout, outputs: OutputPositions) -> Tensor:
    """Return <bool>[B, S + Q], True at keys that masks do not read: a mask reads all visible tokens and all masks.

    What is left are padding, spare outputs, and states that the masking variant keeps from the decoder.
    """
    sequences = len(layout["lengths"])
    visible = hidden_except(layout["decoder_rows"], *layout["positions"].shape)
    masks = hidden_except(outputs.padded[: outputs.wanted], sequences, outputs.length)
    return torch.cat([visible, masks], dim=1)


def hidden_except(rows: Tensor, sequences: int, length: int) -> Tensor:
    """Return <bool>[B, S], True at keys no query may read: all but ``rows`` <int64>[N] of the flattened [B, S]."""
    hidden = torch.ones(sequences * length, dtype=torch.bool, device=rows.device)
    return hidden.index_fill(0, rows, False).view(sequences, length)
