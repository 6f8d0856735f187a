"""Multi-head attention of a decoder to the encoder's output."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.context import AttentionContext
from fairseq_maelm.modules.attention.layers import LayerConfig, MultiHeadAttention


class Memory(NamedTuple):
    """What the cross-attention of a layer reads: keys and values <float>[B, H, S, d_h], and who reads whom."""

    key: Tensor
    value: Tensor
    context: AttentionContext


class CrossAttention(MultiHeadAttention):
    """Multi-head attention to keys and values that ``keys_and_values`` computes for all layers at once."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__(config, number)
        self.q_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)
        # The rows of the keys come first, then those of the values.
        self.kv_proj = nn.Linear(config.embed_dim, 2 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(self, states: Tensor, memory: Memory) -> Tensor:
        """Attend from states <float>[B, T, D], or <float>[M, D] outputs; return a tensor of the same shape."""
        return self.out_proj(self.attend(self.q_proj(states), *memory))


def memories(layers: Sequence[CrossAttention], states: Tensor, context: AttentionContext) -> list[Memory]:
    """Compute what each layer reads of ``states`` <float>[B, S, D] in one matrix product.

    This is faster than a product for each layer, and its backward pass sums the gradient of ``states`` over layers.
    """
    first = layers[0]
    weight = _joined([layer.kv_proj.weight for layer in layers])
    offset = None if first.kv_proj.bias is None else _joined([layer.kv_proj.bias for layer in layers])
    packed = F.linear(states, weight, offset).unflatten(-1, (2 * len(layers), first.num_heads, -1))
    parts = first.split(packed, context, values=len(layers))
    return [Memory(key, value, context) for key, value in zip(parts[: len(layers)], parts[len(layers) :])]


def _joined(parameters: list[Tensor]) -> Tensor:
    """Concatenate the rows of all layers' keys, then those of all layers' values."""
    return torch.stack([each.unflatten(0, (2, -1)) for each in parameters], dim=1).flatten(0, 2)
