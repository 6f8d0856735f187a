"""A dense bias from distances, and its gradient: in autograd's way or summed over all layers in one place."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def spread(of_distance: Tensor, index: Tensor) -> Tensor:
    """Look up, in <float>[H, 2P - 1], columns <int64>[B, S, S]: <float>[B, H, S, S], in memory the heads first."""
    if torch.compiler.is_compiling():  # which cannot derive the views below for all shapes
        return F.embedding(index, of_distance.t()).permute(0, 3, 1, 2)
    return of_distance.index_select(1, index.view(-1)).view(-1, *index.shape).transpose(0, 1)


def sum_over_distances(gradient: Tensor, index: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Add up <float>[B, H, S, S] over pairs of equal distance, the columns <int64>[B, S, S]: <dtype>[H, width].

    On a CPU the sum is exact to double precision and always the same, bit for bit.
    """
    flat = index.view(-1)
    if gradient.device.type != "cpu":
        by_head = gradient.transpose(0, 1).reshape(gradient.shape[1], -1).to(dtype)
        return by_head.new_zeros(len(by_head), width).index_add_(1, flat, by_head)
    # torch's index_add_ takes 30 times as long here.
    heads = [torch.bincount(flat, head.reshape(-1).double(), width) for head in gradient.unbind(1)]
    return torch.stack(heads).to(dtype)


class Attach(torch.autograd.Function):
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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Padding gives sequences biases of their own where they share positions.
        if len(gradient) > len(ctx.index):
            gradient = gradient.sum(dim=0, keepdim=True)
        return sum_over_distances(gradient, ctx.index, ctx.width, ctx.dtype), None, None


class GradientSum:
    """The gradient of a dense bias, summed over all layers in one buffer; arguments as in ``sum_over_distances``."""

    def __init__(self, index: Tensor, heads: int, dtype: torch.dtype) -> None:
        self.index = index
        self._shape, self._dtype = (heads, *index.shape), dtype
        self._buffer: Tensor | None = None
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


class Collect(torch.autograd.Function):
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
    def backward(ctx: Any, unused: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient_sum.take(ctx.width).to(ctx.dtype), None


class DenseBias(NamedTuple):
    """A dense bias whose gradient the layers sum by themselves.

    Attributes:
        values: <float>[B or 1, H or 1, S or 1, S] outside of autograd; None where nothing is added.
        order: <float>[0] to be an argument of every layer's autograd function, or None: nobody wants a gradient.
        gradient_sum: takes the gradients of ``values``, or None.
    """

    values: Tensor | None = None
    order: Tensor | None = None
    gradient_sum: GradientSum | None = None
