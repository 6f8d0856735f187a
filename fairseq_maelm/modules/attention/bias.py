"""What is added to attention logits: a learned bias of the distance, and -inf where a key is hidden.

A step makes one ``AttentionBias`` and all layers of a stack read it. It holds what defines the bias, which is small; a
way of computing attention that needs the dense tensor asks for it, and gets the same one in every layer.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.batch import padding_mask
from fairseq_maelm.modules.attention.unpadded import Rows


def spread(of_distance: Tensor, index: Tensor) -> Tensor:
    """Look the bias of every pair up.

    Args:
        of_distance: <float>[H, 2P - 1].
        index: <int64>[B, S, S] column of each pair.

    Returns:
        <float>[B, H, S, S]; in memory the heads come first.
    """
    return of_distance.index_select(1, index.view(-1)).view(-1, *index.shape).transpose(0, 1)


def sum_over_distances(gradient: Tensor, index: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """The adjoint of ``spread``: add up what belongs to the same distance.

    On a CPU the sum is exact to double precision and always the same, bit for bit.

    Args:
        gradient: <float>[B, H, S, S].
        index: <int64>[B, S, S] column of each pair, in [0, width).
        width: 2P - 1.
        dtype: of the result.

    Returns:
        <dtype>[H, width].
    """
    flat = index.view(-1)
    if gradient.device.type != "cpu":
        by_head = gradient.transpose(0, 1).reshape(gradient.shape[1], -1).to(dtype)
        return by_head.new_zeros(len(by_head), width).index_add_(1, flat, by_head)
    # torch's index_add_ takes 30 times as long here.
    heads = [torch.bincount(flat, head.reshape(-1).double(), width) for head in gradient.unbind(1)]
    return torch.stack(heads).to(dtype)


class _Attach(torch.autograd.Function):
    """Gives a dense bias [B, H, S, S] that was made from ``of_distance`` its way back.

    Nothing is saved the usual way: under activation checkpointing the first layer makes the bias and all use it, and a
    layer must save as much in its recomputation, when the bias is there already, as it did at first.
    """

    @staticmethod
    def forward(ctx: Any, of_distance: Tensor, values: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.width, ctx.dtype = index, of_distance.shape[1], of_distance.dtype
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        # Padding gives sequences biases of their own where they share positions.
        if len(gradient) > len(ctx.index):
            gradient = gradient.sum(dim=0, keepdim=True)
        return sum_over_distances(gradient, ctx.index, ctx.width, ctx.dtype), None, None


class GradientSum:
    """The gradient of a dense bias, summed over all layers in one buffer.

    Args:
        index: <int64>[B or 1, S, S] as in ``spread``.
        heads: H.
        dtype: of the sum.
    """

    def __init__(self, index: Tensor, heads: int, dtype: torch.dtype) -> None:
        self.index = index
        self._shape, self._dtype = (heads, *index.shape), dtype
        self._buffer: Optional[Tensor] = None
        self._pass = -1

    def buffer(self) -> Tensor:
        """<dtype>[B or 1, H, S, S] to add to, in a backward pass; the first layer of each pass finds zeros."""
        # A pass that asks for other gradients than the table's leaves a sum behind that is not to be counted.
        current = torch._C._current_graph_task_id()
        if self._buffer is None or self._pass != current:
            self._buffer = torch.zeros(self._shape, dtype=self._dtype, device=self.index.device)
            self._pass = current
        return self._buffer.transpose(0, 1)

    def take(self, width: int) -> Tensor:
        """The sum of this backward pass over pairs of equal distance, <dtype>[H, width]; frees the buffer."""
        total = sum_over_distances(self.buffer(), self.index, width, self._dtype)
        self._buffer = None
        return total


class _Collect(torch.autograd.Function):
    """Stands between the table and the layers: its output is empty and carries only the order of the backward pass.

    Every layer takes the output as an argument and adds to the sum in its own backward; torch calls this backward once
    all of them are through.
    """

    @staticmethod
    def forward(ctx: Any, of_distance: Tensor, gradient_sum: GradientSum) -> Tensor:
        ctx.gradient_sum, ctx.width, ctx.dtype = gradient_sum, of_distance.shape[1], of_distance.dtype
        return of_distance.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, unused: Tensor) -> Tuple[Tensor, None]:
        return ctx.gradient_sum.take(ctx.width).to(ctx.dtype), None


class DenseBias(NamedTuple):
    """A dense bias whose gradient the layers sum by themselves.

    Attributes:
        values: <float>[B or 1, H or 1, S or 1, S] outside of autograd; None where nothing is added.
        order: <float>[0] to be an argument of every layer's autograd function, or None: nobody wants a gradient.
        gradient_sum: takes the gradients of ``values``, or None.
    """

    values: Optional[Tensor] = None
    order: Optional[Tensor] = None
    gradient_sum: Optional[GradientSum] = None


class AttentionBias:
    """What all layers of a stack add to their attention logits.

    Every argument is optional. A query that may read no key at all gets zeros as its result.

    Args:
        of_distance: <float>[H, 2P - 1] bias of each distance, column = key position - query position + P - 1. Its
            gradient is that of the table of relative biases.
        positions: <int64>[B, S] positions of the tokens, needed for ``of_distance``; B may be 1 when all sequences
            share them.
        lengths: <int64>[B] number of tokens of each sequence; the keys behind are padding.
        hidden: <bool>[B, S] True at keys that no query may read.
        causal: whether each query reads only the keys up to its own column.
        query_positions: <int64>[B, Q] positions of the queries, where they are not those of the keys.
        rows: where sequences stand that are given without padding; nothing is hidden then.
    """

    def __init__(
        self,
        of_distance: Optional[Tensor] = None,
        positions: Optional[Tensor] = None,
        lengths: Optional[Tensor] = None,
        hidden: Optional[Tensor] = None,
        causal: bool = False,
        query_positions: Optional[Tensor] = None,
        rows: Optional[Rows] = None,
    ) -> None:
        if (of_distance is None) != (positions is None):
            raise ValueError("a bias of distances needs positions, and positions mean nothing without it")
        self.of_distance = of_distance
        self.positions = positions
        self.lengths = lengths
        self.hidden = hidden
        self.causal = causal
        self.query_positions = query_positions
        self.rows = rows
        self._dense: Dict[Tuple[torch.dtype, bool], Optional[Tensor]] = {}
        self._collecting: Dict[torch.dtype, DenseBias] = {}
        self._blind: Optional[Tensor] = None

    @property
    def needs_gradient(self) -> bool:
        """Whether a backward pass would ask for the gradient of the bias."""
        return self.of_distance is not None and self.of_distance.requires_grad and torch.is_grad_enabled()

    def read_from(self, query_positions: Tensor) -> "AttentionBias":
        """The same for queries <int64>[B, Q] at some positions alone."""
        own = self.of_distance, self.positions, self.lengths, self.hidden, self.causal
        return AttentionBias(*own, query_positions, self.rows)

    def blind(self, length: int) -> Optional[Tensor]:
        """Mark sequences in which all ``length`` keys are hidden: <bool>[B, 1, 1, 1], or None where that cannot be."""
        if self._blind is None:
            hidden = self._hidden_keys(length)
            if hidden is None:
                return None
            self._blind = hidden.all(dim=1)[:, None, None, None]
        # Asking a GPU would wait for it.
        return None if self._blind.device.type == "cpu" and not self._blind.any() else self._blind

    def dense(self, key: Tensor) -> Optional[Tensor]:
        """The dense bias as autograd follows it; made at the first call.

        Sequences without any visible key get no -inf, so that everything stays finite: see ``blind``.

        Args:
            key: <float>[B, H, S, d_h] gives the number of keys, and type and device of the result.

        Returns:
            <float>[B or 1, H or 1, Q or 1, S], or None when there is nothing to add.
        """
        kind = (key.dtype, self.needs_gradient)
        if kind not in self._dense:
            dense = self._values(key)
            if self.needs_gradient:
                dense = _Attach.apply(self.of_distance, dense, self._index())
            self._dense[kind] = dense
        return self._dense[kind]

    def collecting(self, key: Tensor) -> DenseBias:
        """The dense bias for layers that sum its gradient by themselves; ``key`` as in ``dense``."""
        if not self.needs_gradient or self.of_distance is None:
            return DenseBias(self.dense(key))
        dtype = key.dtype
        if dtype not in self._collecting:
            # Half precision could not hold a sum over layers, sequences and pairs.
            sum_dtype = torch.promote_types(self.of_distance.dtype, torch.float32)
            gradient_sum = GradientSum(self._index(), len(self.of_distance), sum_dtype)
            order = _Collect.apply(self.of_distance, gradient_sum)
            self._collecting[dtype] = DenseBias(self._values(key), order, gradient_sum)
        return self._collecting[dtype]

    def _index(self) -> Tensor:
        assert self.of_distance is not None and self.positions is not None
        largest_distance = self.of_distance.shape[1] // 2
        queries = self.positions if self.query_positions is None else self.query_positions
        return self.positions[:, None, :] - queries[:, :, None] + largest_distance

    def _hidden_keys(self, length: int) -> Optional[Tensor]:
        if self.lengths is None:
            return self.hidden
        padding = padding_mask(self.lengths, length)
        return padding if self.hidden is None else padding | self.hidden

    @torch.no_grad()
    def _values(self, key: Tensor) -> Optional[Tensor]:
        """The numbers of ``dense``."""
        relative = None if self.of_distance is None else spread(self.of_distance.to(key.dtype), self._index())
        length = key.shape[-2]
        keys = self._hidden_keys(length)
        hidden = None if keys is None else (keys & ~keys.all(dim=1, keepdim=True))[:, None, None, :]
        if self.causal:
            later = torch.ones(1, 1, length, length, dtype=torch.bool, device=key.device).triu(1)
            hidden = later if hidden is None else hidden | later
        if hidden is None:
            return relative
        if relative is None:
            relative = torch.zeros(hidden.shape, dtype=key.dtype, device=key.device)
        if len(relative) < len(hidden):
            return relative.masked_fill(hidden, float("-inf"))
        return relative.masked_fill_(hidden, float("-inf"))
