"""The encoder: embeddings and positions around a stack of layers."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import LayerConfig
from fairseq_maelm.modules.attention.relative_position import BUCKET_FUNCTIONS, RelativePositionBias
from fairseq_maelm.modules.attention.rotary import rotations
from fairseq_maelm.modules.autocast import LAYER_NORM_EPS
from fairseq_maelm.modules.dropout import dropout
from fairseq_maelm.modules.layer_modes import in_graphs
from fairseq_maelm.modules.output_positions import OutputPositions
from fairseq_maelm.modules.transformer import TransformerLayer, run_layers

# ``MaelmEncoder.identity`` stores the bucket function as its index in this tuple.
BUCKET_FUNCTION_NAMES = ("none", *BUCKET_FUNCTIONS, "rotary")
# Two numbers share a field of the identity. This is the unit of the upper one: of the local rotary base, above the
# global one; and of LayerNorm's epsilon, above the number of attention heads.
_ABOVE_BASE = 2**31
_ABOVE_HEADS = 2**16


class EncoderOutput(NamedTuple):
    """The encoder's result.

    Attributes:
        states: <float>[B, S, D] of the last layer, or <float>[M, D] at the M ``output_at`` positions. States at padding
            are undefined.
        all_states: L + 1 tensors <float>[B, S, D]: the embeddings, then the states after each layer.
        tokens: <int64>[B, S] the encoded tokens.
        output_at: the only positions that have states; None for all positions.
    """

    states: Tensor
    all_states: list[Tensor]
    tokens: Tensor
    output_at: OutputPositions | None = None


def dictionary_fingerprint(dictionary: Dictionary) -> int:
    """Return a number in [0, 2^63) that depends on every symbol of the vocabulary and on their order."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def encoder_identity(
    vocabulary: int, heads: int, eps: float, bucket_function: str, max_distance: int, rotary_bases: Sequence[int] = ()
) -> Tensor:
    """Pack the settings that weights depend on and that no weight's shape shows: <int64>[4].

    LayerNorm's epsilon is stored with the number of heads, as its difference from the default. Checkpoints from before
    that option therefore have the same identity as today's. Rotary bases are stored in place of the largest distance.

    Args:
        vocabulary: see ``dictionary_fingerprint``.
        heads: number of attention heads.
        eps: LayerNorm's epsilon.
        bucket_function: one of ``BUCKET_FUNCTION_NAMES``.
        max_distance: distance beyond which all distances share a bucket.
        rotary_bases: rotary bases of every third layer and of the others; empty without rotary positions.
    """
    function = BUCKET_FUNCTION_NAMES.index("rotary" if rotary_bases else bucket_function)
    norm = (round(1 / eps) - round(1 / LAYER_NORM_EPS)) * _ABOVE_HEADS
    distance = rotary_bases[0] + rotary_bases[-1] * _ABOVE_BASE if rotary_bases else max_distance
    return torch.tensor([vocabulary, heads + norm, function, distance if function else 0], dtype=torch.int64)


def identity_settings(identity: Tensor) -> dict[str, Any]:
    """Unpack ``encoder_identity`` into named settings, in the order in which differences are reported."""
    vocabulary, heads, function, distance = identity.tolist()
    norm, heads = divmod(heads, _ABOVE_HEADS)
    name = dict(enumerate(BUCKET_FUNCTION_NAMES)).get(function, function)
    known = {
        "vocabulary": vocabulary,
        "attention heads": heads,
        "LayerNorm's epsilon": 1 / max(1, norm + round(1 / LAYER_NORM_EPS)),
        "bucket function": name,
    }
    if name != "rotary":
        return {**known, "relative max distance": distance}
    return {**known, "rotary base": distance % _ABOVE_BASE, "local rotary base": distance // _ABOVE_BASE}


class MaelmEncoder(FairseqEncoder):
    """The text encoder, which is kept after pretraining.

    Args:
        dictionary: fairseq's dictionary with ``<mask>``.
        layers: number of layers L.
        layer_config: settings of each layer. With rotary positions there is no table of position embeddings.
        max_positions: upper bound of positions, exclusive.
        relative_buckets: "t5", "reference" or "none".
        num_buckets: rows of the table of relative biases.
        max_distance: distance beyond which all distances share a bucket.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        layers: int,
        layer_config: LayerConfig,
        max_positions: int,
        relative_buckets: str,
        num_buckets: int,
        max_distance: int,
    ) -> None:
        super().__init__(dictionary)
        self.layer_config, self.longest = layer_config, max_positions
        self.padding_idx, self.mask_index = dictionary.pad(), dictionary.index("<mask>")
        self.embed_tokens = nn.Embedding(len(dictionary), layer_config.embed_dim, self.padding_idx)
        self.embed_positions = (
            None if layer_config.rotary_bases else nn.Embedding(max_positions, layer_config.embed_dim)
        )
        self.layernorm_embedding = layer_config.layer_norm()
        self.layernorm_embedding.single = layer_config.modern
        self.relative_attention_bias: RelativePositionBias | None = None
        if relative_buckets != "none":
            self.relative_attention_bias = RelativePositionBias(
                relative_buckets, num_buckets, max_distance, layer_config.attention_heads, max_positions
            )
        self.layers = nn.ModuleList(TransformerLayer(layer_config, number) for number in range(layers))
        self.final_layer_norm = layer_config.layer_norm() if layer_config.modern else None
        known = dictionary_fingerprint(dictionary), layer_config.attention_heads, layer_config.layer_norm_eps
        identity = encoder_identity(*known, relative_buckets, max_distance, layer_config.rotary_bases)
        self.register_buffer("identity", identity)

    def forward(
        self,
        src_tokens: Tensor,
        positions: Tensor | None = None,
        padded: bool | None = None,
        output_at: OutputPositions | None = None,
    ) -> EncoderOutput:
        """Encode visible tokens.

        Args:
            src_tokens: <int64>[B, S], padded on the right.
            positions: <int64>[B, S] original positions; 0, 1, 2, ... if None.
            padded: True if there is padding. If None, it is looked up on a CPU, and assumed on a GPU.
            output_at: the only positions at which the last layer computes states; None for all.
        """
        if positions is None:
            positions = torch.arange(src_tokens.shape[1], device=src_tokens.device)[None, :]
        states = self._embed(src_tokens, positions)
        bias = self._bias(positions, self._lengths(src_tokens, padded), states)
        last_is_local = self.layer_config.window(len(self.layers) - 1) is not None
        output_bias = bias if last_is_local else _read_from(bias, output_at, len(src_tokens))
        all_states = run_layers(self.layers, states, bias, output_at, output_bias)
        if self.final_layer_norm is not None:
            all_states[-1] = self.final_layer_norm(all_states[-1])
        return EncoderOutput(all_states[-1], all_states, src_tokens, output_at)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the first layer's input <float>[B, S, D]."""
        states = self.embed_tokens(tokens)
        if self.embed_positions is not None:
            states = states + self.embed_positions(positions)
        return dropout(self.layernorm_embedding(states), self.layer_config.dropout, self.training)

    def _lengths(self, tokens: Tensor, padded: bool | None) -> Tensor | None:
        """Return the lengths of the sequences <int64>[B], or None where there is no padding to hide."""
        if padded is False and not in_graphs(self.layers, tokens):
            return None
        inside = tokens.ne(self.padding_idx)
        # On a GPU the look-up would wait for the device, and hiding padding costs nothing.
        return None if padded is None and inside.device.type == "cpu" and bool(inside.all()) else inside.sum(dim=1)

    def _bias(self, positions: Tensor, lengths: Tensor | None, states: Tensor) -> AttentionBias | None:
        """Return the attention bias that all layers share; ``states`` give the dtype of rotations."""
        if self.relative_attention_bias is not None:
            return self.relative_attention_bias.between(positions, lengths)
        config, turns = self.layer_config, None
        if config.rotary_bases:
            turns = rotations(positions, config.rotary_bases, config.head_dim, states)
        if turns is None and lengths is None and config.local_attention is None:
            return None
        known = None if config.local_attention is None else positions
        return AttentionBias(positions=known, lengths=lengths, rotations=turns, padded_to=states.shape[1])

    def max_positions(self) -> int:
        """Return the length of the longest sequence, <s> and </s> included."""
        return self.longest


def _read_from(bias: AttentionBias | None, output_at: OutputPositions | None, sequences: int) -> AttentionBias | None:
    """Return the bias of the last layer, with queries at the output positions only."""
    if output_at is None or bias is None or bias.positions is None or bias.of_distance is None:
        return bias
    return bias.read_from(output_at.pad(output_at.take(bias.positions.expand(sequences, -1)), sequences))


def build_encoder(config: Any, dictionary: Dictionary) -> MaelmEncoder:
    """Build the encoder of a complete configuration."""
    layer_config = LayerConfig(
        embed_dim=config.encoder_embed_dim,
        ffn_embed_dim=config.encoder_ffn_embed_dim,
        attention_heads=config.encoder_attention_heads,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        attention_backend=str(config.attention),
        layer_norm_eps=config.layer_norm_eps,
        modern=config.layer == "modern",
        rotary_bases=(config.rotary_base, config.local_rotary_base) if config.positions == "rotary" else (),
        local_attention=config.local_attention or None,
        global_every=config.global_every,
    )
    return MaelmEncoder(
        dictionary,
        layers=config.encoder_layers,
        layer_config=layer_config,
        max_positions=config.max_positions,
        relative_buckets=config.relative_buckets,
        num_buckets=config.relative_num_buckets,
        max_distance=config.relative_max_distance,
    )
