"""Attention on a CPU: fused forward, a backward of batched matrix products, dropout from random bytes.

torch's fused CPU attention has neither dropout nor a gradient for its mask; what torch does instead holds
several [B, H, S, S] tensors and draws a double for each dropout decision. Here one sequence after another goes through
a few [H, S, S] buffers that stay in the cache, the backward pass computes the attention weights again, and the
gradient of the bias of all layers is summed in one place.
"""

from typing import Any, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention_bias import AttentionBias, DenseBias
from fairseq_maelm.modules.dropout import DropoutGrid, draw_decisions, dropout_grid


def attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, bias: Optional[AttentionBias], dropout: float) -> Tensor:
    """Attention as ``fairseq_maelm.modules.attention.attend`` describes it, for CPU tensors of one type.

    With dropout 0.1 a weight is dropped with probability 26 / 256; see ``fairseq_maelm.modules.dropout``.
    """
    added = DenseBias() if bias is None else bias.collecting(key)
    return _Attention.apply(query, key, value, added.order, added, dropout)


def weights_of_sequence(query: Tensor, key: Tensor, bias: Optional[Tensor], weights: Tensor) -> None:
    """Attention of one sequence's queries [H, Q, d_h] to its keys [H, S, d_h], into ``weights`` [H, Q, S]."""
    scale = query.shape[-1] ** -0.5
    added, beta = (weights, 0.0) if bias is None else (bias.expand_as(weights), 1.0)
    torch.baddbmm(added, query, key.transpose(1, 2), beta=beta, alpha=scale, out=weights)
    torch.softmax(weights, dim=-1, out=weights)


def product(first: Tensor, second: Tensor, scale: float, out: Tensor) -> None:
    """scale * first @ second, batched over heads, into ``out``, which may be strided."""
    torch.baddbmm(out, first, second, beta=0.0, alpha=scale, out=out)


def bias_of_sequence(bias: Optional[Tensor], row: int) -> Optional[Tensor]:
    """<float>[H, Q, S] of <float>[B or 1, H, Q, S]."""
    return None if bias is None else bias[row if len(bias) > 1 else 0]


def _attend_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], decisions: Tensor, grid: DropoutGrid
) -> Tensor:
    batch, heads, queries, _ = query.shape
    # Heads lie side by side, as the next matrix product reads them.
    output = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
    weights = query.new_empty(decisions.shape[1:])
    kept = torch.empty_like(weights)
    for row in range(batch):
        weights_of_sequence(query[row], key[row], bias_of_sequence(bias, row), weights)
        # Comparing into floats at once saves the pass that would turn bits into numbers.
        torch.ge(decisions[row], grid.threshold, out=kept)
        product(weights.mul_(kept), value[row], grid.scale, output[row])
    return output


def _gradient_buffers(query: Tensor, key: Tensor, value: Tensor) -> List[Tensor]:
    """Room for the gradients of query, key and value, in one tensor [B, S, 3, H, d_h] where their shapes allow."""
    if query.shape == key.shape == value.shape:
        batch, heads, length, width = query.shape
        return list(query.new_empty(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4).unbind())
    return [each.new_empty(each.transpose(1, 2).shape).transpose(1, 2) for each in (query, key, value)]


class WeightBuffers:
    """Room for one sequence's attention weights and what becomes of them in a backward pass.

    Args:
        weights: <float>[H, Q, S], gives shape and type.
        drops: whether there is dropout.
    """

    def __init__(self, weights: Tensor, drops: bool) -> None:
        self.weights, self.of_logits = weights, torch.empty_like(weights)
        self.kept = torch.empty_like(weights) if drops else weights
        self.dropped = torch.empty_like(weights) if drops else weights


def backward_of_sequence(
    inputs: Tuple[Tensor, ...],
    gradient: Tensor,
    bias: Optional[Tensor],
    decisions: Optional[Tensor],
    grid: Optional[DropoutGrid],
    gradients: Tuple[Tensor, ...],
    of_bias: Optional[Tensor],
    buffers: Optional[WeightBuffers] = None,
) -> None:
    """Compute one sequence's attention weights again, and write the gradients.

    Args:
        inputs: query <float>[H, Q, d_h], key and value <float>[H, S, d_h].
        gradient: <float>[H, Q, d_h] of the result.
        bias: <float>[H, Q, S] that was added to the logits, or None.
        decisions: <grid.dtype>[H, Q, S] of dropout, or None.
        grid: how they decide.
        gradients: of the inputs, written.
        of_bias: <float>[H, Q, S], added to, or None.
        buffers: of the shape of the weights; made if not given.
    """
    query, key, value = inputs
    of_query, of_key, of_value = gradients
    scale, rescale = query.shape[-1] ** -0.5, 1.0 if grid is None else grid.scale
    if buffers is None:
        shape = (query.shape[0], query.shape[1], key.shape[1])
        buffers = WeightBuffers(query.new_empty(shape), decisions is not None)
    weights, of_logits = buffers.weights, buffers.of_logits
    weights_of_sequence(query, key, bias, weights)
    torch.bmm(gradient, value.transpose(1, 2), out=of_logits)
    if decisions is not None and grid is not None:
        torch.ge(decisions, grid.threshold, out=buffers.kept)
        torch.mul(weights, buffers.kept, out=buffers.dropped)
        of_logits.mul_(buffers.kept)
    product(buffers.dropped.transpose(1, 2), gradient, rescale, of_value)
    # The kernel reads a row whole before it writes it, so it may work in place.
    torch.ops.aten._softmax_backward_data.out(of_logits, weights, -1, weights.dtype, grad_input=of_logits)
    if of_bias is not None:
        of_bias.add_(of_logits, alpha=rescale)
    product(of_logits, key, scale * rescale, of_query)
    product(of_logits.transpose(1, 2), query, scale * rescale, of_key)


class _Attention(torch.autograd.Function):
    """Arguments as in ``attend_on_cpu``, the bias made dense and its ``order`` given once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        order: Optional[Tensor],
        bias: DenseBias,
        dropout: float,
    ) -> Tensor:
        ctx.bias, ctx.grid = bias, dropout_grid(dropout) if dropout else None
        with torch.autocast("cpu", enabled=False):
            if ctx.grid is None:
                ctx.save_for_backward(query, key, value)
                return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.values)
            decisions = draw_decisions(torch.Size((*query.shape[:3], key.shape[2])), ctx.grid)
            ctx.save_for_backward(query, key, value, decisions)
            return _attend_with_dropout(query, key, value, bias.values, decisions, ctx.grid)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
        query, key, value, *decisions = ctx.saved_tensors
        gradients = _gradient_buffers(query, key, value)
        wants_bias = ctx.bias.gradient_sum is not None and ctx.needs_input_grad[3]
        of_bias = ctx.bias.gradient_sum.buffer() if wants_bias else None
        buffers = WeightBuffers(query.new_empty(query.shape[1], query.shape[2], key.shape[2]), bool(decisions))
        for row in range(len(query)):
            backward_of_sequence(
                (query[row], key[row], value[row]),
                gradient[row],
                bias_of_sequence(ctx.bias.values, row),
                decisions[0][row] if decisions else None,
                ctx.grid,
                tuple(each[row] for each in gradients),
                bias_of_sequence(of_bias, row),
                buffers,
            )
        order = None if ctx.bias.order is None else torch.zeros_like(ctx.bias.order)
        return (*gradients, order, None, None)
