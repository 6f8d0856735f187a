"""MAE-LM's decoder, which reads encoder states and mask embeddings at their original positions (section 3)."""

import torch
from torch import Tensor, nn

from fairseq_maelm.batch import Layout
from fairseq_maelm.models.encoder import EncoderOutput, MaelmEncoder
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.cross import KeysValues
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.attention.rotary import Rotation, rotations
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.output_positions import OutputPositions
from fairseq_maelm.modules.reassemble import reassemble
from fairseq_maelm.modules.transformer import TransformerLayer, run_layers


class MaelmDecoder(nn.Module):
    """The decoder, which is discarded after pretraining (section 3).

    As in the authors' code, it has no relative bias, no dropout and, by default, its own position embeddings.

    Args:
        layers: number of layers, at least 1.
        layer_config: settings of each layer.
        max_positions: size of the decoder's own position table; None to use the encoder's, or with rotary positions.
        input_dim: width of the encoder. If the decoder's width differs, a linear layer projects the encoder states.

    Attributes:
        attention: the value of ``--decoder-attention``.
        reads_encoder: True if the decoder attends to the encoder's output.
        autoregressive: True if each token is predicted from those before it.
    """

    attention = "self"
    reads_encoder = False
    autoregressive = False

    def __init__(self, *, layers: int, layer_config: LayerConfig, max_positions: int | None, input_dim: int) -> None:
        super().__init__()
        self.layer_config = layer_config
        width = layer_config.embed_dim
        self.input_projection = nn.Identity() if input_dim == width else nn.Linear(input_dim, width)
        self.embed_positions = None if max_positions is None else nn.Embedding(max_positions, width)
        self.layernorm_embedding = layer_config.layer_norm()
        self.layernorm_embedding.single = layer_config.modern
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
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Decode the result of ``reassemble``: <float>[B, T, decoder width], or <float>[M, width] at ``output_at``."""
        positions = torch.arange(full.shape[1], device=full.device)
        states = self.embed(full, positions, encoder)
        bias = self.bias(positions, self.lengths(visible, encoder, layout), states)
        memory, memory_bias = self.memory(visible, encoder, layout, bias.rotations)
        return self.final_layer_norm(run_layers(self.layers, states, bias, output_at, memory, memory_bias)[-1])

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

    def bias(self, positions: Tensor, lengths: Tensor | None, states: Tensor) -> AttentionBias:
        """Return the bias of self-attention at positions <int64>[T]; ``states`` determine the dtype of rotations."""
        turns = rotations(positions[None], self.layer_config.rotary_bases, self.layer_config.head_dim, states)
        return AttentionBias(lengths=lengths, causal=self.autoregressive, rotations=turns, padded_to=len(positions))

    def memory(
        self, visible: EncoderOutput, encoder: MaelmEncoder, layout: Layout | None, queries: dict[int, Rotation]
    ) -> tuple[list[KeysValues] | None, AttentionBias | None]:
        """Return each layer's keys and values for cross-attention, and the bias; (None, None) in this class."""
        return None, None
