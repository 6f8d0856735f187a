"""Multi-head attention of a decoder to the encoder's output."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import LayerConfig, MultiHeadAttention
from fairseq_maelm.modules.output_positions import OutputPositions

# Keys and values <float>[B, H, S, d_h] of a layer.
KeysValues = tuple[Tensor, Tensor]


class CrossAttention(MultiHeadAttention):
    """Multi-head attention to keys and values that ``keys_and_values`` computes for all layers at once."""

    def __init__(self, config: LayerConfig, number: int) -> None:
        super().__init__(config, number)
        self.q_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)
        # The rows of the keys come first, then those of the values.
        self.kv_proj = nn.Linear(config.embed_dim, 2 * config.embed_dim, not config.modern)
        self.out_proj = nn.Linear(config.embed_dim, config.embed_dim, not config.modern)

    def forward(
        self,
        states: Tensor,
        memory: KeysValues,
        memory_bias: AttentionBias | None,
        output_at: OutputPositions | None = None,
    ) -> Tensor:
        """Attend from states <float>[B, T, D]; return <float>[B, T, D].

        ``memory_bias`` has the rotations of the queries. With ``output_at``, states and result are <float>[M, D].
        """
        return self.out_proj(self.attend(self.q_proj(states), *memory, memory_bias, output_at))


def keys_and_values(layers: Sequence[CrossAttention], memory: Tensor, bias: AttentionBias | None) -> list[KeysValues]:
    """Compute the keys and values of all layers from ``memory`` <float>[B, S, D] in one matrix product.

    This is faster than a product for each layer, and its backward pass sums the gradient of ``memory`` over layers.
    ``bias`` has the rotations of the keys.
    """
    first = layers[0]
    weight = _joined([layer.kv_proj.weight for layer in layers])
    offset = None if first.kv_proj.bias is None else _joined([layer.kv_proj.bias for layer in layers])
    packed = F.linear(memory, weight, offset).unflatten(-1, (2 * len(layers), first.num_heads, -1))
    parts = first.split(packed, bias, values=len(layers))
    return list(zip(parts[: len(layers)], parts[len(layers) :]))


def _joined(parameters: list[Tensor]) -> Tensor:
    """Concatenate the rows of all layers' keys, then those of all layers' values."""
    return torch.stack([each.unflatten(0, (2, -1)) for each in parameters], dim=1).flatten(0, 2)
