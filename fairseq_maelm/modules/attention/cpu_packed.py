"""Attention on a CPU within packed sequences, which lie one behind another; the mathematics is that of ``cpu``."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.bias_gradient import DenseBias
from fairseq_maelm.modules.attention.cpu import SequenceGroup, WeightBuffers, collecting, sequences_together
from fairseq_maelm.modules.dropout import DropoutGrid, draw_decisions, dropout_grid


class _Members(NamedTuple):
    """Sequences of similar length that are computed together, filled up to the longest of them.

    Attributes:
        sequences: <int64>[G] their numbers.
        keys: <int64>[G, S] the place of each token; N, which is behind the last, where there is none.
        queries: <int64>[G, Q] the same for the queries; their sequence's number if each has one alone.
        shape: G, H, Q and S.
        missing: <bool>[G, S] where there is no token, or None if all are as long as the longest.
    """

    sequences: Tensor
    keys: Tensor
    queries: Tensor
    shape: Tuple[int, int, int, int]
    missing: Optional[Tensor]

    def gather(self, packed: Tensor, index: Tensor) -> Tensor:
        """Take <float>[N, ...] apart into <float>[G, Q or S, ...]; where there is no token stands another."""
        # One sequence needs no copy.
        if len(index) == 1:
            first = int(index[0, 0])
            return packed[first : first + index.shape[1]][None]
        return packed.index_select(0, index.view(-1).clamp(max=len(packed) - 1)).view(*index.shape, *packed.shape[1:])

    def gather_gradient(self, packed: Tensor) -> Tensor:
        """The same for the gradient of the result, with zeros where there is no token."""
        own = self.gather(packed, self.queries)
        if self.missing is None or self.queries.shape != self.missing.shape:
            return own
        return own.masked_fill_(self.missing[:, :, None, None], 0.0)

    def scatter(self, packed: Tensor, index: Tensor, values: Tensor) -> None:
        """Write <float>[G, Q or S, ...] to its rows in <float>[N + 1, ...]."""
        if len(index) == 1:
            first = int(index[0, 0])
            packed[first : first + index.shape[1]] = values[0]
        else:
            packed.index_copy_(0, index.view(-1), values.reshape(-1, *packed.shape[1:]))

    def part(self, dense: Tensor) -> Tensor:
        """Their part of <float>[B or 1, ...]; a view if it is the same for all sequences."""
        part = dense[:, :, : self.shape[2], : self.shape[3]]
        return part if len(dense) == 1 else part[self.sequences]

    def bias(self, dense: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
        """Their part of a dense bias, with -inf where there is no key: <float>[G or 1, H or 1, Q or 1, S]."""
        own = None if dense is None else self.part(dense)
        if self.missing is None:
            return own
        missing = self.missing[:, None, None, :]
        return (torch.zeros(missing.shape, dtype=dtype) if own is None else own).masked_fill(missing, float("-inf"))

    def keep_sums(self, of_bias: Tensor, sums: Tensor) -> None:
        """Write back what was added to their part of the gradient of the dense bias, where ``part`` is a copy."""
        if len(of_bias) > 1:
            of_bias[:, :, : self.shape[2], : self.shape[3]][self.sequences] = sums


def _members(
    numbers: List[int], starts: List[int], lengths: Tuple[int, ...], every_token: bool, heads: int
) -> _Members:
    """What is known about the sequences of these numbers, which come in the order of their lengths."""
    end, longest = starts[-1] + lengths[-1], lengths[numbers[-1]]
    sequences, places = torch.tensor(numbers), torch.arange(longest)
    missing = places >= torch.tensor(lengths)[sequences, None]
    keys = (torch.tensor(starts)[sequences, None] + places).masked_fill(missing, end)
    queries = keys if every_token else sequences[:, None]
    shape = (len(numbers), heads, queries.shape[1], longest)
    return _Members(sequences, keys, queries, shape, missing if bool(missing.any()) else None)


@lru_cache(maxsize=4)
def _members_of_batch(lengths: Tuple[int, ...], every_token: bool, heads: int) -> Tuple[_Members, ...]:
    """Put the sequences of a batch into groups. All layers of a step ask for the same ones."""
    starts = torch.tensor((0, *lengths)).cumsum(0).tolist()[:-1]
    groups: List[List[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        weights = heads * (lengths[number] if every_token else 1) * lengths[number]
        if not groups or len(groups[-1]) >= sequences_together(weights):
            groups.append([])
        groups[-1].append(number)
    return tuple(_members(numbers, starts, lengths, every_token, heads) for numbers in groups)


class _Parts:
    """A batch taken apart into groups of sequences.

    Args:
        lengths: tokens of each sequence.
        query: <float>[B, H, d_h] one query of each sequence; None if every token has one.
        projected: <float>[N, 3, H, d_h], or [N, 2, H, d_h] without queries.
        bias: <float>[B or 1, H or 1, Q or 1, S] for the longest sequences, or None.
    """

    def __init__(
        self, lengths: Tuple[int, ...], query: Optional[Tensor], projected: Tensor, bias: Optional[Tensor]
    ) -> None:
        self.query = query
        self.projected = projected
        self.bias = bias
        self.members = _members_of_batch(lengths, query is None, projected.shape[2])
        self.weights = [torch.Size(each.shape).numel() for each in self.members]

    def buffers(self, number: int) -> WeightBuffers:
        """Room for each of the groups."""
        return WeightBuffers(self.projected, max(self.weights), number)

    def groups(
        self, decisions: Optional[Tensor], grid: Optional[DropoutGrid]
    ) -> Iterator[Tuple[_Members, SequenceGroup]]:
        """Yield the groups; ``decisions`` <grid.dtype>[sum of the weights] are those of dropout, or None."""
        drawn = [None] * len(self.weights) if decisions is None else decisions.split(self.weights)
        for members, own in zip(self.members, drawn):
            inputs = members.gather(self.projected, members.keys).permute(2, 0, 3, 1, 4)
            query = inputs[0] if self.query is None else members.gather(self.query, members.queries).transpose(1, 2)
            decided = None if own is None else own.view(members.shape)
            bias = members.bias(self.bias, inputs.dtype)
            yield members, SequenceGroup(query, inputs[-2], inputs[-1], bias, decided, grid)


def attend_packed(query: Optional[Tensor], projected: Tensor, bias: AttentionBias, dropout: float) -> Tensor:
    """Attention as ``plain.attend`` describes it, each sequence for itself.

    Args:
        query: <float>[B, H, d_h] one query of each sequence; None if every token has one.
        projected: <float>[N, 3, H, d_h] query, key and value of every token, or [N, 2, H, d_h] without queries.
        bias: with a ``packing``, which says where sequences end, and nothing hidden.
        dropout: probability of dropping an attention weight, in [0, 1).

    Returns:
        <float>[N or B, H, d_h].
    """
    assert bias.packing is not None
    added = collecting(bias, projected)
    return _PackedAttention.apply(query, projected, added.order, added, bias.packing.lengths, dropout)


class _PackedAttention(torch.autograd.Function):
    """Arguments as in ``attend_packed``, the bias made dense and its ``order`` once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Optional[Tensor],
        projected: Tensor,
        order: Optional[Tensor],
        bias: DenseBias,
        lengths: Tuple[int, ...],
        dropout: float,
    ) -> Tensor:
        ctx.bias, ctx.lengths, ctx.grid = bias, lengths, dropout_grid(dropout) if dropout else None
        parts = _Parts(lengths, query, projected, bias.values)
        decisions = None if ctx.grid is None else draw_decisions(torch.Size((sum(parts.weights),)), ctx.grid)
        ctx.save_for_backward(query, projected, decisions)
        output = _with_spare_row(projected[:, 0] if query is None else query)
        buffers = parts.buffers(0 if decisions is None else 2)
        with torch.autocast("cpu", enabled=False):
            for members, group in parts.groups(decisions, ctx.grid):
                members.scatter(output, members.queries, group.attend(buffers).transpose(1, 2))
        return output[:-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        query, projected, decisions = ctx.saved_tensors
        wants_bias = ctx.bias.gradient_sum is not None and ctx.needs_input_grad[2]
        of_bias = ctx.bias.gradient_sum.buffer() if wants_bias else None
        parts = _Parts(ctx.lengths, query, projected, ctx.bias.values)
        of_projected, of_query = _with_spare_row(projected), None if query is None else _with_spare_row(query)
        buffers = parts.buffers(2 if decisions is None else 4)
        for members, group in parts.groups(decisions, ctx.grid):
            own = members.gather_gradient(gradient).transpose(1, 2)
            sums = None if of_bias is None else members.part(of_bias)
            computed = [each.transpose(1, 2) for each in group.gradients(own, sums, buffers)]
            if of_bias is not None and sums is not None:
                members.keep_sums(of_bias, sums)
            if of_query is not None:
                members.scatter(of_query, members.queries, computed.pop(0))
            members.scatter(of_projected, members.keys, torch.stack(computed, dim=2))
        order = None if ctx.bias.order is None else torch.zeros_like(ctx.bias.order)
        return None if of_query is None else of_query[:-1], of_projected[:-1], order, None, None, None


def _with_spare_row(packed: Tensor) -> Tensor:
    """Room for <float>[N, ...] and one row more, to which goes what belongs to no token."""
    return packed.new_empty(len(packed) + 1, *packed.shape[1:])
