"""Multi-head attention with an additive bias."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_maelm.modules.queries import Queries


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], dropout: float) -> Tensor:
    """Scaled dot-product attention (section 2.1): softmax(Q K^T / sqrt(d_h) + bias) V.

    The one door to attention: whatever computes it must mean the same as ``attend_plainly``.

    Args:
        query: <float>[B, H, Q, d_h].
        key, value: <float>[B, H, S, d_h]; in self-attention Q is S.
        bias: <float>[B or 1, H or 1, Q or 1, S], added to the logits; -inf hides a key. It may need a gradient.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[B, H, Q, d_h].
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], dropout: float) -> Tensor:
    """The same, written out; the reference for tests. Arguments and result as in ``attend``."""
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias
    return F.dropout(logits.softmax(dim=-1), dropout) @ value


def attention_bias(relative: Optional[Tensor], padding: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """Join what is added to the attention logits.

    Args:
        relative: <float>[B or 1, H, S, S] relative position bias, or None.
        padding: <bool>[B, S] True at padding, or None when there is none.
        dtype: of the result.

    Returns:
        <dtype>[B or 1, H or 1, S, S], or None when there is nothing to add.
    """
    if padding is None:
        return None if relative is None else relative.to(dtype)
    hidden = torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill(padding, float("-inf"))
    hidden = hidden[:, None, None, :]
    return hidden if relative is None else relative.to(dtype) + hidden


def causal_bias(length: int, like: Tensor) -> Tensor:
    """Hide every later position: [1, 1, length, length] of the dtype of ``like``, with -inf above the diagonal."""
    hidden = torch.full((length, length), float("-inf"), dtype=like.dtype, device=like.device).triu(1)
    return hidden[None, None]


class _MultiHeadAttention(nn.Module):
    """What follows once there are queries, keys and values; the subclass makes them, and ``out_proj``."""

    out_proj: nn.Linear

    def __init__(self, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout

    def attend_and_join(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], queries: Optional[Queries] = None
    ) -> Tensor:
        """Attend as ``attend`` does and join the heads: <float>[B, Q, D], or [M, D] for ``queries``."""
        attended = attend(query, key, value, bias, self.dropout if self.training else 0.0)
        joined = attended.transpose(1, 2).flatten(2)
        return self.out_proj(joined if queries is None else queries.unpad(joined))


class SelfAttention(_MultiHeadAttention):
    """Multi-head self-attention over the sequences of a batch.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(num_heads, dropout)
        # Queries, keys and values come from one matrix product; rows in this order.
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, states: Tensor, bias: Optional[Tensor], queries: Optional[Queries] = None) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D], or to [M, D] for ``queries``; ``bias`` as in ``attend``."""
        if queries is not None:
            return self._attend_from(states, bias, queries)
        batch, length, width = states.shape
        qkv = self.qkv_proj(states).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # three times [B, H, S, d_h]
        return self.attend_and_join(query, key, value, bias)

    def _attend_from(self, states: Tensor, bias: Optional[Tensor], queries: Queries) -> Tensor:
        """The rows of ``forward`` at the queries; keys and values come from all of <float>[B, S, D]."""
        batch, length, width = states.shape
        head_dim = width // self.num_heads
        query_weight, kv_weight = self.qkv_proj.weight.split([width, 2 * width])
        query_bias, kv_bias = self.qkv_proj.bias.split([width, 2 * width])
        rows = F.linear(queries.take(states), query_weight, query_bias)
        query = queries.pad(rows, batch).unflatten(2, (self.num_heads, head_dim)).transpose(1, 2)
        kv = F.linear(states, kv_weight, kv_bias).view(batch, length, 2, self.num_heads, head_dim)
        key, value = kv.permute(2, 0, 3, 1, 4)
        return self.attend_and_join(query, key, value, bias, queries)


class CrossAttention(_MultiHeadAttention):
    """Multi-head attention of one sequence to another of the same width.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__(num_heads, dropout)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        # Keys and values come from one matrix product; rows in this order.
        self.kv_proj = nn.Linear(embed_dim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, states: Tensor, memory: Tensor, bias: Optional[Tensor], queries: Optional[Queries] = None
    ) -> Tensor:
        """<float>[B, T, D], reading ``memory`` <float>[B, S, D], to <float>[B, T, D]; ``bias`` as in ``attend``.

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
