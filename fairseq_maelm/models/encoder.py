"""The encoder: embeddings and positions around a stack of layers."""

from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_maelm.architecture.encoder_options import EncoderOptions
from fairseq_maelm.modules.attention.context import AttentionContext, Tokens, Visibility
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.attention.relative_position import RelativePositionBias
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.dropout import dropout
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.lm_head import embed_tokens_and_mask
from fairseq_maelm.modules.output_positions import OutputPositions
from fairseq_maelm.modules.transformer import TransformerLayer, run_layers


class EncoderInput(NamedTuple):
    """The input of the encoder's first layer."""

    states: Tensor  # <float>[B, S, D] embeddings of the visible tokens, positions added, normalized
    context: AttentionContext  # who reads whom in all layers
    mask_embedding: Tensor  # <float>[D] the embedding of ``<mask>``, for a decoder


class EncoderOutput(NamedTuple):
    """The encoder's result."""

    states: Tensor  # <float>[B, S, D] of the last layer, or <float>[M, D] at M ``outputs``; undefined at padding
    all_states: list[
        Tensor
    ]  # the first layer's input <float>[B, S, D], then each layer's states; the last are ``states``
    tokens: Tensor  # <int64>[B, S] the encoded tokens
    mask_embedding: Tensor  # <float>[D] the embedding of ``<mask>``, for a decoder
    outputs: OutputPositions | None = None  # the positions of ``states``; None for all positions


class MaelmEncoder(FairseqEncoder):
    """The text encoder, the part of the model that is kept after pretraining.

    Positions are below ``max_positions``; rotary positions need no table of embeddings. ``buckets`` are those of the
    relative bias: the function "t5" or "reference", the rows of the table, and the distance beyond which all distances
    share a bucket; None without this bias.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        layers: int,
        layer_config: LayerConfig,
        max_positions: int,
        buckets: tuple[str, int, int] | None,
    ) -> None:
        super().__init__(dictionary)
        self.layer_config, self.longest = layer_config, max_positions
        self.padding_idx, self.mask_index = dictionary.pad(), dictionary.index("<mask>")
        self.embed_tokens = nn.Embedding(len(dictionary), layer_config.embed_dim, self.padding_idx)
        self.embed_positions = (
            None if layer_config.rotary_bases else nn.Embedding(max_positions, layer_config.embed_dim)
        )
        self.layernorm_embedding = layer_config.layer_norm(of_embeddings=True)
        self.relative_attention_bias: RelativePositionBias | None = None
        if buckets is not None:
            self.relative_attention_bias = RelativePositionBias(*buckets, layer_config.attention_heads, max_positions)
        self.layers = nn.ModuleList(TransformerLayer(layer_config, number) for number in range(layers))
        self.final_layer_norm = layer_config.layer_norm() if layer_config.modern else nn.Identity()

    def forward(
        self,
        src_tokens: Tensor,
        positions: Tensor | None = None,
        padded: bool | None = None,
        outputs: OutputPositions | None = None,
    ) -> EncoderOutput:
        """Encode visible tokens.

        Args:
            src_tokens: <int64>[B, S], padded on the right.
            positions: <int64>[B, S] original positions; 0, 1, 2, ... if None.
            padded: True if there is padding. If None, the tokens are checked on a CPU, and padding is assumed on a GPU.
            outputs: the only positions at which the last layer computes states; None for all.
        """
        states, context, mask_embedding = self.embed(src_tokens, positions, padded)
        all_states = run_layers(self.layers, states, context, outputs)
        all_states[-1] = self.final_layer_norm(all_states[-1])
        return EncoderOutput(all_states[-1], all_states, src_tokens, mask_embedding, outputs)

    def embed(self, src_tokens: Tensor, positions: Tensor | None = None, padded: bool | None = None) -> EncoderInput:
        """Return the input of the first layer; the arguments are those of ``forward``."""
        if positions is None:
            positions = torch.arange(src_tokens.shape[1], device=src_tokens.device)[None, :]
        embedded, mask_embedding = embed_tokens_and_mask(self.embed_tokens, src_tokens, self.mask_index)
        states = self.add_positions(embedded, positions)
        context = self._context(positions, self._lengths(src_tokens, padded), states)
        return EncoderInput(states, context, mask_embedding)

    def add_positions(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """Return the first layer's input given embeddings <float>[..., D] and their positions <int64>[...]."""
        if self.embed_positions is not None:
            embedded = embedded + self.embed_positions(positions)
        return dropout(self.layernorm_embedding(embedded), self.layer_config.dropout, self.training)

    def _lengths(self, tokens: Tensor, padded: bool | None) -> Tensor | None:
        """Return the lengths of the sequences <int64>[B], or None where there is no padding to hide."""
        if padded is False and not in_graphs(self.layers, tokens):
            return None
        inside = tokens.ne(self.padding_idx)
        # Checking would synchronize with a GPU, where hiding padding costs nothing.
        return None if padded is None and inside.device.type == "cpu" and bool(inside.all()) else inside.sum(dim=1)

    def _context(self, positions: Tensor, lengths: Tensor | None, states: Tensor) -> AttentionContext:
        """Return who reads whom in all layers: each token all tokens of its sequence, except padding.

        ``states`` determine the dtype of rotations. Layers with local attention add their windows.
        """
        if self.relative_attention_bias is not None:
            return AttentionContext(Tokens(positions), Visibility(lengths), self.relative_attention_bias())
        config = self.layer_config
        turns = rotations(positions, config.rotary_bases, config.head_dim, states)
        return AttentionContext(Tokens(positions, turns, self.longest), Visibility(lengths))

    def max_positions(self) -> int:
        """Return the maximum sequence length in tokens, <s> and </s> included."""
        return self.longest


def build_encoder(config: Any, dictionary: Dictionary) -> MaelmEncoder:
    """Build the encoder of a complete configuration."""
    options = EncoderOptions.of(config)
    layer_config = LayerConfig(
        **options.of_encoder_layers,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        attention_backend=str(config.attention),
    )
    return MaelmEncoder(dictionary, config.encoder_layers, layer_config, config.max_positions, options.buckets)
