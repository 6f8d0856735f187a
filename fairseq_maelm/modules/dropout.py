"""Fast dropout on a CPU: eight decisions from each 64-bit random number, stored as one byte each.

torch draws a double for every decision on a CPU, one after the other. All random numbers come from torch's default
generator, so a seed or a restored state of the generator reproduces the decisions.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Size, Tensor
from torch.autograd.function import once_differentiable

# Maximum relative error of the probabilities of dropping and keeping; 0.1 becomes 26 / 256.
_TOLERANCE = 0.02


class DropoutGrid(NamedTuple):
    """The rule by which a random integer decides whether an element is dropped or kept."""

    dtype: torch.dtype  # of the integers, which are uniform over the type's whole range
    threshold: int  # an element is kept if its integer is at least this
    scale: float  # exactly 1 / probability of keeping, so that dropout preserves the mean


def dropout_grid(probability: float) -> DropoutGrid:
    """Return the grid with the smallest dtype that is close enough to the dropout ``probability``, in (0, 1)."""
    for dtype in (torch.int8, torch.int16, torch.int32):
        values = 2 ** (8 * dtype.itemsize)
        dropped = min(round(probability * values), values - 1)
        grid = DropoutGrid(dtype, dropped - values // 2, values / (values - dropped))
        if abs(dropped / values - probability) <= _TOLERANCE * min(probability, 1.0 - probability):
            break
    return grid


def draw_decisions(shape: Size, grid: DropoutGrid) -> Tensor:
    """Draw random integers <grid.dtype>[shape] on the CPU from torch's default generator."""
    count = shape.numel()
    words = torch.empty(-(-count * grid.dtype.itemsize // 8), dtype=torch.int64)
    return words.random_(-(2**63), None).view(grid.dtype)[:count].view(shape)


class _Dropout(torch.autograd.Function):
    """Add dropout(states) to a residual, if there is one; the random integers are stored for the backward pass."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, residual: Tensor | None, probability: float) -> Tensor:
        ctx.grid = dropout_grid(probability)
        decisions = draw_decisions(states.shape, ctx.grid)
        ctx.save_for_backward(decisions)
        ctx.dtype = states.dtype
        if residual is not None and residual.dtype == states.dtype:
            return torch.addcmul(residual, states, _kept(decisions, ctx.grid, states.dtype), value=ctx.grid.scale)
        dropped = _kept(decisions, ctx.grid, states.dtype).mul_(states).mul_(ctx.grid.scale)
        return dropped if residual is None else residual + dropped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (decisions,) = ctx.saved_tensors
        of_states = _kept(decisions, ctx.grid, ctx.dtype).mul_(gradient).mul_(ctx.grid.scale)
        return of_states, gradient if ctx.needs_input_grad[1] else None, None


def _kept(decisions: Tensor, grid: DropoutGrid, dtype: torch.dtype) -> Tensor:
    # Writing the comparison in the final dtype saves a pass that would convert booleans.
    return torch.ge(decisions, grid.threshold, out=torch.empty(decisions.shape, dtype=dtype))


def _by_torch(states: Tensor) -> bool:
    return states.device.type != "cpu" or torch.compiler.is_compiling()


def dropout(states: Tensor, probability: float, training: bool) -> Tensor:
    """In training, zero each element with a probability in [0, 1), and scale the others to preserve the mean.

    On a CPU the probability is rounded, by at most 2 percent (0.1 becomes 0.1016).
    """
    if not training or probability == 0.0:
        return states
    if _by_torch(states):
        return F.dropout(states, probability, True)
    return _Dropout.apply(states, None, probability)


def add_dropped(residual: Tensor, states: Tensor, probability: float, training: bool) -> Tensor:
    """Return residual + dropout(states) with fewer passes over memory; see ``dropout``."""
    if not training or probability == 0.0 or _by_torch(states):
        return residual + dropout(states, probability, training)
    return _Dropout.apply(states, residual, probability)
