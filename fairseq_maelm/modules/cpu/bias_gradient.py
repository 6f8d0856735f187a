"""The gradient of a dense relative bias, summed over all layers in one buffer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.bias_gradient import sum_over_distances


class GradientSum:
    """The gradient of a dense bias, summed over all layers in one buffer; see ``sum_over_distances``."""

    def __init__(self, index: Tensor, heads: int, dtype: torch.dtype) -> None:
        self.index = index
        self._shape, self._dtype = (heads, *index.shape), dtype
        self._buffer: Tensor | None = None
        self._pass = -1

    def buffer(self) -> Tensor:
        """Return the buffer <dtype>[B or 1, H, S, S] of the current backward pass; at its start the buffer is zero."""
        # A backward pass without a gradient of the table leaves a sum behind. The next pass must not include it.
        current = torch._C._current_graph_task_id()
        if self._buffer is None or self._pass != current:
            self._buffer = torch.zeros(self._shape, dtype=self._dtype, device=self.index.device)
            self._pass = current
        return self._buffer.transpose(0, 1)

    def take(self, width: int) -> Tensor:
        """Return the gradient, summed over pairs at equal distance, <dtype>[H, width]; free the buffer."""
        total = sum_over_distances(self.buffer(), self.index, width, self._dtype)
        self._buffer = None
        return total


class Collect(torch.autograd.Function):
    """Makes the backward pass of the bias table run after the backward passes of all layers.

    ``forward`` returns an empty tensor, which is an argument of every layer. torch therefore calls ``backward`` after
    every layer's backward pass has added to the sum.
    """

    @staticmethod
    def forward(ctx: Any, of_distance: Tensor, gradient_sum: GradientSum) -> Tensor:
        """Return an empty tensor that depends on ``of_distance``."""
        ctx.gradient_sum, ctx.width, ctx.dtype = gradient_sum, of_distance.shape[1], of_distance.dtype
        return of_distance.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, unused: Tensor) -> tuple[Tensor, None]:
        """Return the sum over all layers."""
        return ctx.gradient_sum.take(ctx.width).to(ctx.dtype), None


class DenseBias(NamedTuple):
    """A dense bias whose gradient the layers sum themselves.

    Attributes:
        values: <float>[B or 1, H or 1, S or 1, S] without autograd; None if nothing is added.
        order: <float>[0] result of ``Collect``, an argument of every layer; None if no gradient is needed.
        gradient_sum: sum of the gradients of ``values``, or None.
    """

    values: Tensor | None = None
    order: Tensor | None = None
    gradient_sum: GradientSum | None = None
