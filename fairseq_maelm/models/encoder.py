"""Encoder and decoder: embeddings and positions around one layer stack."""

import hashlib
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.relative_position import BUCKET_FUNCTIONS, RelativePositionBias
from fairseq_maelm.modules.dropout import dropout
from fairseq_maelm.modules.precision import LAYER_NORM_EPS
from fairseq_maelm.modules.transformer import LayerShape, TransformerLayer, run_layers
from fairseq_maelm.modules.wanted import WantedPositions

# The bucket function is held as its place here.
BUCKET_FUNCTION_NAMES = ("none", *BUCKET_FUNCTIONS)
# In ``MaelmEncoder.identity``, what LayerNorm's epsilon is counted in above the number of attention heads.
_ABOVE_HEADS = 2**16


class EncoderOutput(NamedTuple):
    """What the encoder returns.

    Attributes:
        states: <float>[B, S, D] of the last layer, or <float>[M, D] where they were asked for at M positions alone.
            What stands at padding means nothing.
        all_states: L + 1 times <float>[B, S, D]: the embeddings, then the states after each layer, at last ``states``.
        tokens: <int64>[B, S] what was encoded.
        wanted: the positions at which alone there are states; None for all.
    """

    states: Tensor
    all_states: List[Tensor]
    tokens: Tensor
    wanted: Optional[WantedPositions] = None


def dictionary_fingerprint(dictionary: Dictionary) -> int:
    """A number in [0, 2^63) that changes with any symbol of the vocabulary or its place."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def encoder_identity(vocabulary: int, heads: int, eps: float, bucket_function: str, max_distance: int) -> Tensor:
    """What shapes do not show, although weights are worthless under other settings: <int64>[4].

    LayerNorm's epsilon shares the field of the heads, where its usual number leaves no trace: checkpoints that are
    older than the option hold what they would hold today.

    Args:
        vocabulary: see ``dictionary_fingerprint``.
        heads: of attention.
        eps: of LayerNorm.
        bucket_function: one of ``BUCKET_FUNCTION_NAMES``.
        max_distance: of relative positions.
    """
    function = BUCKET_FUNCTION_NAMES.index(bucket_function)
    norm = (round(1 / eps) - round(1 / LAYER_NORM_EPS)) * _ABOVE_HEADS
    return torch.tensor([vocabulary, heads + norm, function, max_distance if function else 0], dtype=torch.int64)


def identity_settings(identity: Tensor) -> Dict[str, Any]:
    """Name what ``encoder_identity`` has put together, in the order in which differences are reported."""
    vocabulary, heads, function, distance = identity.tolist()
    norm, heads = divmod(heads, _ABOVE_HEADS)
    return {
        "vocabulary": vocabulary,
        "attention heads": heads,
        "LayerNorm's epsilon": 1 / max(1, norm + round(1 / LAYER_NORM_EPS)),
        "bucket function": dict(enumerate(BUCKET_FUNCTION_NAMES)).get(function, function),
        "relative max distance": distance,
    }


class MaelmEncoder(FairseqEncoder):
    """The text encoder: all that is kept after pretraining.

    Args:
        dictionary: fairseq's, with ``<mask>``.
        layers: L.
        shape: of each layer.
        max_positions: positions lie in [0, max_positions).
        relative_buckets: "t5", "reference" or "none".
        num_buckets: rows of the table of relative biases.
        max_distance: from here on all distances share a bucket.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        layers: int,
        shape: LayerShape,
        max_positions: int,
        relative_buckets: str,
        num_buckets: int,
        max_distance: int,
    ) -> None:
        super().__init__(dictionary)
        self.dropout = shape.dropout
        self.padding_idx, self.mask_index = dictionary.pad(), dictionary.index("<mask>")
        self.embed_tokens = nn.Embedding(len(dictionary), shape.embed_dim, self.padding_idx)
        self.embed_positions = nn.Embedding(max_positions, shape.embed_dim)
        self.layernorm_embedding = shape.layer_norm()
        self.relative_attention_bias: Optional[RelativePositionBias] = None
        if relative_buckets != "none":
            self.relative_attention_bias = RelativePositionBias(
                relative_buckets, num_buckets, max_distance, shape.attention_heads, max_positions
            )
        self.layers = nn.ModuleList(TransformerLayer(shape) for _ in range(layers))
        known = dictionary_fingerprint(dictionary), shape.attention_heads, shape.layer_norm_eps
        self.register_buffer("identity", encoder_identity(*known, relative_buckets, max_distance))

    def forward(
        self,
        src_tokens: Tensor,
        positions: Optional[Tensor] = None,
        padded: Optional[bool] = None,
        wanted: Optional[WantedPositions] = None,
    ) -> EncoderOutput:
        """Encode visible tokens.

        Args:
            src_tokens: <int64>[B, S], padded on the right.
            positions: <int64>[B, S] original positions; 0, 1, 2, ... if not given.
            padded: whether there is any padding; looked up if not given, which waits for the device.
            wanted: the last layer's states are wanted for these alone.
        """
        if positions is None:
            positions = torch.arange(src_tokens.shape[1], device=src_tokens.device)[None, :]
        bias = self._bias(positions, self._lengths(src_tokens, padded))
        wanted_bias = _read_from(bias, wanted, len(src_tokens))
        all_states = run_layers(self.layers, self._embed(src_tokens, positions), bias, wanted, wanted_bias)
        return EncoderOutput(all_states[-1], all_states, src_tokens, wanted)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What enters the first layer: <float>[B, S, D]."""
        states = self.layernorm_embedding(self.embed_tokens(tokens) + self.embed_positions(positions))
        return dropout(states, self.dropout, self.training)

    def _lengths(self, tokens: Tensor, padded: Optional[bool]) -> Optional[Tensor]:
        """<int64>[B] tokens of each sequence, or None where there is no padding to hide."""
        if padded is False:
            return None
        padding = tokens.eq(self.padding_idx)
        return (~padding).sum(dim=1) if padded or bool(padding.any()) else None

    def _bias(self, positions: Tensor, lengths: Optional[Tensor]) -> Optional[AttentionBias]:
        """What all layers add to their attention logits."""
        if self.relative_attention_bias is not None:
            return self.relative_attention_bias.between(positions, lengths)
        return None if lengths is None else AttentionBias(lengths=lengths)

    def max_positions(self) -> int:
        """The longest sequence that has positions, <s> and </s> included."""
        return self.embed_positions.num_embeddings


def _read_from(
    bias: Optional[AttentionBias], wanted: Optional[WantedPositions], sequences: int
) -> Optional[AttentionBias]:
    """The bias of the last layer, where its states are wanted at some positions alone."""
    if wanted is None or bias is None or bias.positions is None:
        return bias
    return bias.read_from(wanted.pad(wanted.take(bias.positions.expand(sequences, -1)), sequences))


def build_encoder(config: Any, dictionary: Dictionary) -> MaelmEncoder:
    """The encoder of a complete configuration."""
    shape = LayerShape(
        config.encoder_embed_dim,
        config.encoder_ffn_embed_dim,
        config.encoder_attention_heads,
        config.dropout,
        config.attention_dropout,
        str(config.attention),
        config.layer_norm_eps,
    )
    buckets = config.relative_buckets, config.relative_num_buckets, config.relative_max_distance
    return MaelmEncoder(dictionary, config.encoder_layers, shape, config.max_positions, *buckets)
