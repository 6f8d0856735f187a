"""Multi-head attention with an additive bias: the layers around a backend."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.choice import BACKENDS, outside_of_graphs
from fairseq_maelm.modules.wanted import WantedPositions


class MultiHeadAttention(nn.Module):
    """What follows once there are queries, keys and values; the subclass makes them, and ``out_proj``."""

    out_proj: nn.Linear

    def __init__(self, num_heads: int, dropout: float, backend: str) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.backend_name = backend
        self.backend = BACKENDS[backend]

    def leave_graphs(self) -> None:
        """Make torch.compile leave attention out of its graphs: backends have kernels of their own."""
        self.backend = outside_of_graphs(self.backend)

    def attend_and_join(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Optional[AttentionBias],
        wanted: Optional[WantedPositions] = None,
    ) -> Tensor:
        """Attend as ``plain.attend`` does and join the heads: <float>[B, Q, D], or [M, D] for ``wanted``."""
        attended = self.backend.attend(query, key, value, bias, self.dropout if self.training else 0.0)
        joined = attended.transpose(1, 2).flatten(2)
        return self.out_proj(joined if wanted is None else wanted.unpad(joined))


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention over the sequences of a batch.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
        backend: how it is computed, one of ``ATTENTION_BACKENDS``.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, backend: str = "auto") -> None:
        super().__init__(num_heads, dropout, backend)
        # Queries, keys and values come from one matrix product; rows in this order.
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, states: Tensor, bias: Optional[AttentionBias], wanted: Optional[WantedPositions] = None
    ) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D], or to [M, D] for ``wanted``; ``bias`` as in ``plain.attend``."""
        if wanted is not None:
            return self._attend_from(states, bias, wanted)
        batch, length, width = states.shape
        qkv = self.qkv_proj(states).view(batch, length, 3, self.num_heads, width // self.num_heads)
        attended = self.backend.attend_qkv(qkv, bias, self.dropout if self.training else 0.0)
        return self.out_proj(attended.flatten(2))

    def _attend_from(self, states: Tensor, bias: Optional[AttentionBias], wanted: WantedPositions) -> Tensor:
        """The rows of ``forward`` at the wanted positions; keys and values come from all of <float>[B, S, D]."""
        batch, length, width = states.shape
        query_weight, kv_weight = self.qkv_proj.weight.split([width, 2 * width])
        query_bias, kv_bias = self.qkv_proj.bias.split([width, 2 * width])
        rows, kv = F.linear(wanted.take(states), query_weight, query_bias), F.linear(states, kv_weight, kv_bias)
        query = wanted.pad(rows, batch).unflatten(2, (self.num_heads, width // self.num_heads)).transpose(1, 2)
        key, value = kv.view(batch, length, 2, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.attend_and_join(query, key, value, bias, wanted)
