"""Multi-head attention of a decoder to the encoder's output."""

from typing import Optional

from torch import Tensor, nn

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.layers import MultiHeadAttention
from fairseq_maelm.modules.wanted import WantedPositions


class CrossAttention(MultiHeadAttention):
    """Multi-head attention of one sequence to another of the same width.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
        backend: how it is computed, one of ``ATTENTION_BACKENDS``.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, backend: str = "auto") -> None:
        super().__init__(num_heads, dropout, backend)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        # Keys and values come from one matrix product; rows in this order.
        self.kv_proj = nn.Linear(embed_dim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, states: Tensor, memory: Tensor, bias: Optional[AttentionBias], queries: Optional[WantedPositions] = None
    ) -> Tensor:
        """<float>[B, T, D], reading ``memory`` <float>[B, S, D], to <float>[B, T, D]; ``bias`` as in ``plain.attend``.

        With ``queries`` states and result are their rows alone, <float>[M, D].
        """
        batch, length, width = memory.shape
        head_dim = width // self.num_heads
        query = self.q_proj(states)
        if queries is not None:
            query = queries.pad(query, batch)
        query = query.unflatten(2, (self.num_heads, head_dim)).transpose(1, 2)
        kv = self.kv_proj(memory).view(batch, length, 2, self.num_heads, head_dim)
        key, value = kv.permute(2, 0, 3, 1, 4)
        return self.attend_and_join(query, key, value, bias, queries)
