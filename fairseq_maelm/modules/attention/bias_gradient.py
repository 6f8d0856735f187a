"""A dense relative bias and its gradient by autograd."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def spread(of_distance: Tensor, index: Tensor) -> Tensor:
    """Look up columns <int64>[B, S, S] of <float>[H, 2P - 1]; return <float>[B, H, S, S].

    Except in compiled graphs, the result is stored as [H, B, S, S].
    """
    if torch.compiler.is_compiling():  # the compiler cannot derive the views below for all shapes
        return F.embedding(index, of_distance.t()).permute(0, 3, 1, 2)
    return of_distance.index_select(1, index.view(-1)).view(len(of_distance), *index.shape).transpose(0, 1)


def sum_over_distances(gradient: Tensor, index: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sum a gradient <float>[B, H, S, S] over all pairs with an equal distance; return <dtype>[H, width].

    ``index`` <int64>[B, S, S] has each pair's column of the result.

    On a CPU the sum is computed in double precision and is deterministic, elsewhere at least in single precision.
    """
    flat = index.view(-1)
    if gradient.device.type != "cpu":
        precise = torch.promote_types(dtype, torch.float32)
        by_head = gradient.transpose(0, 1).reshape(gradient.shape[1], -1).to(precise)
        return by_head.new_zeros(len(by_head), width).index_add_(1, flat, by_head).to(dtype)
    # torch's index_add_ takes 30 times as long here.
    heads = [torch.bincount(flat, head.reshape(-1).double(), width) for head in gradient.unbind(1)]
    return torch.stack(heads).to(dtype)


class Attach(torch.autograd.Function):
    """Makes a dense bias [B, H, S, S], computed without autograd, differentiable with respect to ``of_distance``.

    It does not use ``save_for_backward``: activation checkpointing requires a layer to save the same number of tensors
    when it is recomputed, and the first layer would save fewer, because it then finds the bias already computed.
    """

    @staticmethod
    def forward(ctx: Any, of_distance: Tensor, values: Tensor, index: Tensor) -> Tensor:
        """Return the dense bias ``values`` as a function of ``of_distance``."""
        ctx.index, ctx.width, ctx.dtype = index, of_distance.shape[1], of_distance.dtype
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Sum the dense gradient over distances."""
        # With padding the sequences have different biases even if they share positions.
        if len(gradient) > len(ctx.index):
            gradient = gradient.sum(dim=0, keepdim=True)
        return sum_over_distances(gradient, ctx.index, ctx.width, ctx.dtype), None, None
