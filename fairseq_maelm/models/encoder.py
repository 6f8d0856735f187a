"""Encoder and decoder: embeddings and positions around one layer stack."""

import hashlib
from typing import List, NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_maelm.modules.attention_bias import AttentionBias
from fairseq_maelm.modules.dropout import dropout
from fairseq_maelm.modules.precision import LayerNorm
from fairseq_maelm.modules.queries import Queries
from fairseq_maelm.modules.relative_position import BUCKET_FUNCTIONS, RelativePositionBias
from fairseq_maelm.modules.transformer import LayerShape, TransformerLayer, run_layers

# What ``MaelmEncoder.identity`` holds: settings that shapes do not show, although weights are worthless under others.
IDENTITY_FIELDS = ("vocabulary", "attention heads", "bucket function", "relative max distance")
# The bucket function is held as its place here.
BUCKET_FUNCTION_NAMES = ("none", *BUCKET_FUNCTIONS)


class EncoderOutput(NamedTuple):
    """What the encoder returns.

    Attributes:
        states: <float>[B, S, D] of the last layer; <float>[M, D] where they were asked for at M positions alone.
        all_states: L + 1 times <float>[B, S, D]: the embeddings, then the states after each layer, at last ``states``.
    """

    states: Tensor
    all_states: List[Tensor]


def dictionary_fingerprint(dictionary: Dictionary) -> int:
    """A number in [0, 2^63) that changes with any symbol of the vocabulary or its place."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


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
        self.padding_idx = dictionary.pad()
        self.embed_tokens = nn.Embedding(len(dictionary), shape.embed_dim, self.padding_idx)
        self.embed_positions = nn.Embedding(max_positions, shape.embed_dim)
        self.layernorm_embedding = LayerNorm(shape.embed_dim)
        self.relative_attention_bias: Optional[RelativePositionBias] = None
        bucket_function = BUCKET_FUNCTION_NAMES.index(relative_buckets)
        if bucket_function:
            self.relative_attention_bias = RelativePositionBias(
                relative_buckets, num_buckets, max_distance, shape.attention_heads, max_positions
            )
        self.layers = nn.ModuleList(TransformerLayer(shape) for _ in range(layers))
        identity = [
            dictionary_fingerprint(dictionary),
            shape.attention_heads,
            bucket_function,
            max_distance if bucket_function else 0,
        ]
        self.register_buffer("identity", torch.tensor(identity, dtype=torch.int64))

    def forward(
        self,
        src_tokens: Tensor,
        positions: Optional[Tensor] = None,
        padded: Optional[bool] = None,
        queries: Optional[Queries] = None,
    ) -> EncoderOutput:
        """Encode visible tokens.

        Args:
            src_tokens: <int64>[B, S], padded on the right.
            positions: <int64>[B, S] original positions; 0, 1, 2, ... if not given.
            padded: whether there is any padding; looked up if not given, which waits for the device.
            queries: the last layer's states are wanted for these alone; needs ``positions``.
        """
        if positions is None:
            positions = torch.arange(src_tokens.shape[1], device=src_tokens.device)[None, :]
        padding = src_tokens.eq(self.padding_idx)
        if padded is None:
            padded = bool(padding.any())
        states = self.layernorm_embedding(self.embed_tokens(src_tokens) + self.embed_positions(positions))
        states = dropout(states, self.dropout, self.training)
        bias = self._bias(positions, (~padding).sum(dim=1) if padded else None)
        query_bias = bias
        if queries is not None and bias is not None and bias.of_distance is not None:
            query_bias = bias.read_from(queries.pad(queries.take(positions), len(positions)))
        all_states = run_layers(self.layers, states, bias, queries, query_bias)
        return EncoderOutput(all_states[-1], all_states)

    def _bias(self, positions: Tensor, lengths: Optional[Tensor]) -> Optional[AttentionBias]:
        if self.relative_attention_bias is not None:
            return self.relative_attention_bias.between(positions, lengths)
        return None if lengths is None else AttentionBias(lengths=lengths)

    def max_positions(self) -> int:
        """The longest sequence that has positions, <s> and </s> included."""
        return self.embed_positions.num_embeddings
