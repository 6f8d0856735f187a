"""Attention on a CPU within sequences that lie one behind another; the mathematics is that of ``attention_cpu``."""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention_bias import AttentionBias, DenseBias
from fairseq_maelm.modules.attention_cpu import backward_of_sequence, product, weights_of_sequence
from fairseq_maelm.modules.dropout import DropoutGrid, draw_decisions, dropout_grid


class _Sequence(NamedTuple):
    """What belongs to one sequence.

    Attributes:
        tensors: those of the batch by heads, <float>[H, n, d_h] each.
        bias: <float>[H, Q, S] that is added to its logits, or None.
        decisions: <int>[H, Q, S] of dropout, or None.
        of_bias: <float>[H, Q, S] for the bias' gradient, or None.
    """

    tensors: Tuple[Tensor, ...]
    bias: Optional[Tensor]
    decisions: Optional[Tensor]
    of_bias: Optional[Tensor]


class _Parts:
    """A batch taken apart into its sequences, with few operations on tensors for each.

    Args:
        lengths: tokens of each sequence.
        every_token: whether all tokens are queries, or only the first of each sequence.
        heads: H.
    """

    def __init__(self, lengths: Tuple[int, ...], every_token: bool, heads: int) -> None:
        self.keys, self.queries = lengths, lengths if every_token else (1,) * len(lengths)
        self.heads = heads
        self.pairs = [heads * queries * keys for queries, keys in zip(self.queries, self.keys)]

    def of_keys(self, rows: Tensor) -> Tuple[Tensor, ...]:
        """<float>[N, H, d_h] as [H, S, d_h] of each sequence."""
        return rows.transpose(0, 1).split(self.keys, dim=1)

    def of_queries(self, rows: Tensor) -> Tuple[Tensor, ...]:
        """<float>[N or B, H, d_h] as [H, Q, d_h] of each sequence."""
        return rows.transpose(0, 1).split(self.queries, dim=1)

    def sequences(
        self,
        tensors: Iterable[Tuple[Tensor, ...]],
        bias: Optional[Tensor],
        decisions: Optional[Tensor],
        of_bias: Optional[Tensor] = None,
    ) -> Iterator[_Sequence]:
        """Yield the sequences, with parts of ``tensors``, which are taken apart already."""
        biases, sums = self._of_bias(bias), self._of_bias(of_bias)
        drawn = repeat(None) if decisions is None else iter(decisions.split(self.pairs))
        for number, parts in enumerate(zip(*tensors)):
            shape = (self.heads, self.queries[number], self.keys[number])
            own = next(drawn)
            yield _Sequence(parts, biases(number), None if own is None else own.view(shape), sums(number))

    def _of_bias(self, dense: Optional[Tensor]) -> Callable[[int], Optional[Tensor]]:
        """The part of each sequence in a dense bias, which is as large as the longest one needs."""
        # Where all share one bias, so do sequences of one length.
        known: Dict[Tuple[int, ...], Tensor] = {}

        def part(number: int) -> Optional[Tensor]:
            if dense is None:
                return None
            queries, keys = self.queries[number], self.keys[number]
            place = (queries, keys) if len(dense) == 1 else (queries, keys, number)
            if place not in known:
                known[place] = dense[number if len(dense) > 1 else 0, :, :queries, :keys]
            return known[place]

        return part


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
        ctx.bias, ctx.grid = bias, dropout_grid(dropout) if dropout else None
        ctx.parts = parts = _Parts(lengths, query is None, packed.shape[2])
        queries = packed[:, 0] if query is None else query
        decisions = None if ctx.grid is None else draw_decisions(torch.Size((sum(parts.pairs),)), ctx.grid)
        ctx.save_for_backward(query, packed, decisions)
        output = torch.empty(queries.shape, dtype=queries.dtype)
        tensors = parts.of_queries(queries), parts.of_keys(packed[:, -2]), parts.of_keys(packed[:, -1])
        with torch.autocast("cpu", enabled=False):
            for sequence in parts.sequences((*tensors, parts.of_queries(output)), bias.values, decisions):
                _attend(sequence, ctx.grid)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        query, packed, decisions = ctx.saved_tensors
        wants_bias = ctx.bias.gradient_sum is not None and ctx.needs_input_grad[2]
        of_bias = ctx.bias.gradient_sum.buffer() if wants_bias else None
        of_packed, parts = torch.empty_like(packed), ctx.parts
        queries = packed[:, 0] if query is None else query
        of_queries = of_packed[:, 0] if query is None else torch.empty_like(query)
        tensors = [
            *(parts.of_queries(queries), parts.of_keys(packed[:, -2]), parts.of_keys(packed[:, -1])),
            *(parts.of_queries(of_queries), parts.of_keys(of_packed[:, -2]), parts.of_keys(of_packed[:, -1])),
            parts.of_queries(gradient),
        ]
        for sequence in parts.sequences(tensors, ctx.bias.values, decisions, of_bias):
            inputs, gradients, own = sequence.tensors[:3], sequence.tensors[3:6], sequence.tensors[6]
            backward_of_sequence(inputs, own, sequence.bias, sequence.decisions, ctx.grid, gradients, sequence.of_bias)
        order = None if ctx.bias.order is None else torch.zeros_like(ctx.bias.order)
        return None if query is None else of_queries, of_packed, order, None, None, None


def _attend(sequence: _Sequence, grid: Optional[DropoutGrid]) -> None:
    """Write a sequence's result: its tensors are query, key, value and the place for it."""
    query, key, value, output = sequence.tensors
    if sequence.decisions is None or grid is None:
        mask = None if sequence.bias is None else sequence.bias[None]
        output.copy_(F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=mask)[0])
        return
    weights = query.new_empty(sequence.decisions.shape)
    weights_of_sequence(query, key, sequence.bias, weights)
    kept = torch.ge(sequence.decisions, grid.threshold, out=torch.empty_like(weights))
    product(weights.mul_(kept), value, grid.scale, output)
