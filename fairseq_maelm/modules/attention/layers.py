"""Multi-head attention with an additive bias."""

from functools import cache
from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.choice import PATHS, choose_path, kernel_arguments, triton_kernels
from fairseq_maelm.modules.attention.cpu_unpadded import attend_in_rows
from fairseq_maelm.modules.queries import Queries


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float, path: str = "auto"
) -> Tensor:
    """Scaled dot-product attention (section 2.1): softmax(Q K^T / sqrt(d_h) + bias) V.

    The one door to attention: every path means the same as "plain".

    Args:
        query: <float>[B, H, Q, d_h].
        key, value: <float>[B, H, S, d_h]; in self-attention Q is S.
        bias: added to the logits, or None. One of distances, or a causal one, needs Q = S.
        dropout: probability of dropping an attention weight, in [0, 1).
        path: one of ``ATTENTION_PATHS``.

    Returns:
        <float>[B, H, Q, d_h]; zeros for sequences whose keys are all hidden. What queries at padding get means nothing.

    Raises:
        ValueError: if the path is forced and cannot compute this.
    """
    chosen = choose_path(query, bias, dropout, path)
    output = PATHS[chosen](query, key, value, bias, dropout)
    if chosen == "triton":
        # The kernels write zeros there themselves.
        return output
    blind = None if bias is None else bias.blind(key.shape[-2])
    return output if blind is None else output.masked_fill(blind, 0.0)


class _Unpack(torch.autograd.Function):
    """[B, S, 3, H, d_h] to query, key and value; packs their gradients without a copy where they lie so already.

    autograd's own way back through ``permute`` and ``unbind`` copies everything twice.
    """

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tuple[Tensor, ...]:
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        batch, heads, length, width = gradients[0].shape
        shape = (batch, length, 3, heads, width)
        places = torch.empty(shape, device="meta", dtype=gradients[0].dtype).permute(2, 0, 3, 1, 4)
        storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
        if len(storages) == 1 and all(
            gradient.stride() == place.stride() and gradient.storage_offset() == place.storage_offset()
            for gradient, place in zip(gradients, places)
        ):
            return gradients[0].as_strided(shape, torch.empty(shape, device="meta").stride())
        return torch.stack([gradient.transpose(1, 2) for gradient in gradients], dim=2)


def attend_packed(packed: Tensor, bias: Optional[AttentionBias], dropout: float, path: str = "auto") -> Tensor:
    """Self-attention from queries, keys and values that one matrix product made.

    Args:
        packed: <float>[B, S, 3, H, d_h]; the rest as in ``attend``.

    Returns:
        <float>[B, S, H, d_h].
    """
    query = packed[:, :, 0].transpose(1, 2)
    if choose_path(query, bias, dropout, path) == "triton":
        return triton_kernels().relative_attention_packed(packed, *kernel_arguments(query, bias, dropout))
    return attend(*unpack(packed), bias, dropout, path).transpose(1, 2)


@cache
def compile_around_attention() -> None:
    """Make torch.compile leave attention out of its graphs: it has kernels of its own.

    Said when something is to be compiled and not by a decorator, which would import torch's compiler: that takes
    seconds, for every command.
    """
    for name in ("attend", "attend_packed"):
        globals()[name] = torch.compiler.disable(globals()[name])


def unpack(packed: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, <float>[B, H, S, d_h] each, as views of <float>[B, S, 3, H, d_h]."""
    if packed.device.type == "cpu":
        return _Unpack.apply(packed)
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind()
    return query, key, value


def can_leave_padding_out(path: str) -> bool:
    """Whether attention may be computed in rows on a CPU: a path that is asked for by name is kept."""
    return path in ("auto", "cpu")


class _MultiHeadAttention(nn.Module):
    """What follows once there are queries, keys and values; the subclass makes them, and ``out_proj``."""

    out_proj: nn.Linear

    def __init__(self, num_heads: int, dropout: float, path: str) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.path = path

    def attend_and_join(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Optional[AttentionBias],
        queries: Optional[Queries] = None,
    ) -> Tensor:
        """Attend as ``attend`` does and join the heads: <float>[B, Q, D], or [M, D] for ``queries``."""
        attended = attend(query, key, value, bias, self.dropout if self.training else 0.0, self.path)
        joined = attended.transpose(1, 2).flatten(2)
        return self.out_proj(joined if queries is None else queries.unpad(joined))


class SelfAttention(_MultiHeadAttention):
    """Multi-head self-attention over the sequences of a batch.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
        path: how it is computed, one of ``ATTENTION_PATHS``.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, path: str = "auto") -> None:
        super().__init__(num_heads, dropout, path)
        # Queries, keys and values come from one matrix product; rows in this order.
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, states: Tensor, bias: Optional[AttentionBias], queries: Optional[Queries] = None) -> Tensor:
        """<float>[B, S, D] to <float>[B, S, D], or to [M, D] for ``queries``; ``bias`` as in ``attend``.

        Where the bias has ``rows`` the states are <float>[N, D], and so is the result without queries.
        """
        if bias is not None and bias.rows is not None:
            return self._attend_in_rows(states, bias, queries)
        if queries is not None:
            return self._attend_from(states, bias, queries)
        batch, length, width = states.shape
        qkv = self.qkv_proj(states).view(batch, length, 3, self.num_heads, width // self.num_heads)
        attended = attend_packed(qkv, bias, self.dropout if self.training else 0.0, self.path)
        return self.out_proj(attended.flatten(2))

    def _project(self, states: Tensor, queries: Queries) -> Tuple[Tensor, Tensor]:
        """Query rows <float>[M, D] and keys and values <float>[..., 2 D] of all states."""
        width = states.shape[-1]
        query_weight, kv_weight = self.qkv_proj.weight.split([width, 2 * width])
        query_bias, kv_bias = self.qkv_proj.bias.split([width, 2 * width])
        return F.linear(queries.take(states), query_weight, query_bias), F.linear(states, kv_weight, kv_bias)

    def _attend_from(self, states: Tensor, bias: Optional[AttentionBias], queries: Queries) -> Tensor:
        """The rows of ``forward`` at the queries; keys and values come from all of <float>[B, S, D]."""
        batch, length, width = states.shape
        rows, kv = self._project(states, queries)
        query = queries.pad(rows, batch).unflatten(2, (self.num_heads, width // self.num_heads)).transpose(1, 2)
        key, value = kv.view(batch, length, 2, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.attend_and_join(query, key, value, bias, queries)

    def _attend_in_rows(self, states: Tensor, bias: AttentionBias, queries: Optional[Queries]) -> Tensor:
        """``forward`` for <float>[N, D] of sequences without padding; the queries are their first tokens."""
        heads = (self.num_heads, states.shape[-1] // self.num_heads)
        query = None
        if queries is None:
            packed = self.qkv_proj(states).unflatten(1, (3, *heads))
        else:
            rows, kv = self._project(states, queries)
            query, packed = rows.unflatten(1, heads), kv.unflatten(1, (2, *heads))
        attended = attend_in_rows(query, packed, bias, self.dropout if self.training else 0.0)
        return self.out_proj(attended.flatten(1))


class CrossAttention(_MultiHeadAttention):
    """Multi-head attention of one sequence to another of the same width.

    Args:
        embed_dim: D, a multiple of ``num_heads``.
        num_heads: H.
        dropout: of the attention weights, while training.
        path: how it is computed, one of ``ATTENTION_PATHS``.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, path: str = "auto") -> None:
        super().__init__(num_heads, dropout, path)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        # Keys and values come from one matrix product; rows in this order.
        self.kv_proj = nn.Linear(embed_dim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, states: Tensor, memory: Tensor, bias: Optional[AttentionBias], queries: Optional[Queries] = None
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
