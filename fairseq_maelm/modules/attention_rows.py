"""Attention on a CPU within sequences that lie one behind another; the mathematics is that of ``attention_cpu``."""

from typing import Any, Iterator, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention_bias import AttentionBias, DenseBias
from fairseq_maelm.modules.attention_cpu import backward_of_sequence, bias_of_sequence, product, weights_of_sequence
from fairseq_maelm.modules.dropout import DropoutGrid, draw_decisions, dropout_grid


class _Sequence(NamedTuple):
    """A sequence's place.

    Attributes:
        number: of the sequence.
        queries: its rows among the queries.
        keys: its rows among the keys.
    """

    number: int
    queries: slice
    keys: slice

    @property
    def pairs(self) -> Tuple[int, int]:
        """The numbers of its queries and of its keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start


def _sequences(lengths: Tuple[int, ...], every_token: bool) -> Iterator[_Sequence]:
    start = 0
    for number, length in enumerate(lengths):
        keys = slice(start, start + length)
        yield _Sequence(number, keys if every_token else slice(number, number + 1), keys)
        start += length


def _by_head(rows: Tensor, places: slice) -> Tensor:
    """<float>[n, H, d_h] of one sequence as [H, n, d_h]."""
    return rows[places].transpose(0, 1)


def attend_in_rows(query: Optional[Tensor], packed: Tensor, bias: AttentionBias, dropout: float) -> Tensor:
    """Attention as ``fairseq_maelm.modules.attention.attend`` describes it, each sequence for itself.

    Args:
        query: <float>[B, H, d_h] one query of each sequence; None if every token has one.
        packed: <float>[N, 3, H, d_h] query, key and value of every token, or [N, 2, H, d_h] without queries.
        bias: with ``rows``, which say where sequences end, and nothing hidden.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[N or B, H, d_h].
    """
    assert bias.rows is not None
    added = bias.collecting(packed)
    return _AttentionInRows.apply(query, packed, added.order, added, bias.rows.lengths, dropout)


def _of_sequence(queries: Tensor, packed: Tensor, sequence: _Sequence) -> Tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of a sequence by heads, or their gradients."""
    key, value = (_by_head(part, sequence.keys) for part in (packed[:, -2], packed[:, -1]))
    return _by_head(queries, sequence.queries), key, value


def _bias(dense: Optional[Tensor], sequence: _Sequence) -> Optional[Tensor]:
    """<float>[H, Q, S] of a sequence from the bias of all, or its gradient; they are as large as the longest needs."""
    values = bias_of_sequence(dense, sequence.number)
    queries, keys = sequence.pairs
    return None if values is None else values[:, :queries, :keys]


class _AttentionInRows(torch.autograd.Function):
    """Arguments as in ``attend_in_rows``, the bias made dense and its ``order`` once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Optional[Tensor],
        packed: Tensor,
        order: Optional[Tensor],
        bias: DenseBias,
        lengths: Tuple[int, ...],
        dropout: float,
    ) -> Tensor:
        ctx.bias, ctx.lengths, ctx.grid = bias, lengths, dropout_grid(dropout) if dropout else None
        queries = packed[:, 0] if query is None else query
        sequences = list(_sequences(lengths, query is None))
        decisions = None
        if ctx.grid is not None:
            count = packed.shape[2] * sum(queries * keys for queries, keys in (each.pairs for each in sequences))
            decisions = draw_decisions(torch.Size((count,)), ctx.grid)
        ctx.save_for_backward(query, packed, decisions)
        output = torch.empty(queries.shape, dtype=queries.dtype)
        with torch.autocast("cpu", enabled=False):
            for sequence, chosen in _with_decisions(sequences, packed.shape[2], decisions):
                inputs = _of_sequence(queries, packed, sequence)
                _attend(inputs, _bias(bias.values, sequence), chosen, ctx.grid, _by_head(output, sequence.queries))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        query, packed, decisions = ctx.saved_tensors
        wants_bias = ctx.bias.gradient_sum is not None and ctx.needs_input_grad[2]
        of_bias = ctx.bias.gradient_sum.buffer() if wants_bias else None
        of_packed = torch.empty_like(packed)
        queries = packed[:, 0] if query is None else query
        of_queries = of_packed[:, 0] if query is None else torch.empty_like(query)
        sequences = list(_sequences(ctx.lengths, query is None))
        for sequence, chosen in _with_decisions(sequences, packed.shape[2], decisions):
            backward_of_sequence(
                _of_sequence(queries, packed, sequence),
                _by_head(gradient, sequence.queries),
                _bias(ctx.bias.values, sequence),
                chosen,
                ctx.grid,
                _of_sequence(of_queries, of_packed, sequence),
                _bias(of_bias, sequence),
            )
        order = None if ctx.bias.order is None else torch.zeros_like(ctx.bias.order)
        return None if query is None else of_queries, of_packed, order, None, None, None


def _with_decisions(
    sequences: list[_Sequence], heads: int, decisions: Optional[Tensor]
) -> Iterator[Tuple[_Sequence, Optional[Tensor]]]:
    """Every sequence with the random integers [H, Q, S] that decide about its weights."""
    start = 0
    for sequence in sequences:
        shape = (heads, *sequence.pairs)
        stop = start + shape[0] * shape[1] * shape[2]
        yield sequence, None if decisions is None else decisions[start:stop].view(shape)
        start = stop


def _attend(
    inputs: Tuple[Tensor, Tensor, Tensor],
    bias: Optional[Tensor],
    decisions: Optional[Tensor],
    grid: Optional[DropoutGrid],
    output: Tensor,
) -> None:
    """Write one sequence's result [H, Q, d_h] to ``output``."""
    if decisions is None or grid is None:
        query, key, value = (each[None] for each in inputs)
        mask = None if bias is None else bias[None]
        output.copy_(F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[0])
        return
    query, key, value = inputs
    weights = query.new_empty(decisions.shape)
    weights_of_sequence(query, key, bias, weights)
    kept = torch.ge(decisions, grid.threshold, out=torch.empty_like(weights))
    product(weights.mul_(kept), value, grid.scale, output)
