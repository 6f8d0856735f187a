"""Attention on a CPU: fused forward pass, backward pass by batched matrix products, dropout from random bytes.

torch's fused CPU attention has neither dropout nor a gradient of the mask. Its fallback stores several [B, H, S, S]
tensors and draws a double for each dropout decision. Here a few sequences at a time are computed in buffers that stay
in the cache, the backward pass recomputes the attention weights, and all layers sum the bias's gradient in one buffer.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_maelm.modules.attention.context import AttentionContext, zero_where_blind
from fairseq_maelm.modules.attention.relative_position import sum_over_distances
from fairseq_maelm.modules.dropout import DropoutGrid, draw_decisions, dropout_grid

# Up to this number of keys, torch's fused attention, which works on vectors of 16, is slower than the plain formula:
# with 12 keys 2.3 times in bfloat16 and 1.4 times in single precision.
SHORT = 15
# Maximum number of attention weights that are computed together. Short sequences computed one by one cost more in calls
# than in arithmetic; with more weights the buffers no longer fit the cache. Products in half precision are so fast with
# AMX that calls cost more: the backward pass of 24 blocks of 64 x 192 takes 0.6 times as long together.
_WEIGHTS_TOGETHER = 32_768
_HALF_WEIGHTS_TOGETHER = 2**22
# Of a longer sequence, some heads are computed together: buffers for all of them would take gigabytes.
_SEQUENCE_WEIGHTS = 2**22
_Part = tuple[slice, slice]


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
    """A dense bias whose gradient the layers sum themselves."""

    values: Tensor | None = None  # <float>[B or 1, H or 1, S or 1, S] without autograd; None adds nothing
    order: Tensor | None = None  # <float>[0] of ``Collect``, for every layer; None without gradients
    gradient_sum: GradientSum | None = None  # of the gradients of ``values``


def attend(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute ``plain_attention`` for CPU tensors of one dtype; tensors on another device raise a ValueError.

    With dropout 0.1 a weight is dropped with probability 26 / 256; see ``fairseq_maelm.modules.dropout``.
    """
    if query.device.type != "cpu":
        raise ValueError(f"--attention cpu cannot run on {query.device.type}: use --attention auto, or add --cpu")
    added = collecting(context, key)
    return zero_where_blind(_Attention.apply(query, key, value, added.order, added, dropout), key, context)


def attend_short(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
    """Compute ``plain_attention`` without dropout and gradients, for up to ``SHORT`` keys."""
    batch_heads = query.shape[:2]
    queries, keys, values = (each.flatten(0, 1) for each in (query, key, value))
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = (
        torch.bmm(queries, keys.transpose(1, 2)).to(precise).mul_(query.shape[-1] ** -0.5).unflatten(0, batch_heads)
    )
    added = context.dense(key)
    if added is not None:
        weights += added
    # torch's softmax takes three times as long for rows this short.
    weights -= weights.amax(dim=-1, keepdim=True)
    weights.exp_()
    weights /= weights.sum(dim=-1, keepdim=True)
    output = torch.bmm(weights.to(value.dtype).flatten(0, 1), values).unflatten(0, batch_heads)
    return zero_where_blind(output, key, context)


def collecting(context: AttentionContext, key: Tensor) -> DenseBias:
    """Return the dense bias for layers that sum the bias gradient themselves; ``key`` as in ``context.dense``."""
    relative_bias = context.relative_bias
    if not context.needs_gradient or relative_bias is None:
        return DenseBias(context.dense(key))

    def collect() -> DenseBias:
        # Half precision is too coarse for a sum over layers, sequences and pairs.
        sum_dtype = torch.promote_types(relative_bias.dtype, torch.float32)
        gradient_sum = GradientSum(context.index(), len(relative_bias), sum_dtype)
        return DenseBias(context.values(key), Collect.apply(relative_bias, gradient_sum), gradient_sum)

    return context.once(("collecting", key.dtype), collect)


def _together(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Return how many sequences and heads of queries [B, H, Q, d_h] and keys [B, H, S, d_h] to compute together."""
    heads, of_head = query.shape[1], max(query.shape[2] * key.shape[2], 1)
    most = _HALF_WEIGHTS_TOGETHER if query.dtype.itemsize == 2 else _WEIGHTS_TOGETHER
    sequences = max(1, min(most // (heads * of_head), len(query)))
    return sequences, max(1, min(_SEQUENCE_WEIGHTS // of_head, heads))


class _WeightBuffers:
    """Reusable buffers for the attention weights of a group of sequences, and for equally large results."""

    def __init__(self, query: Tensor, key: Tensor, number: int) -> None:
        sequences, heads = _together(query, key)
        size = sequences * heads * query.shape[2] * key.shape[2]
        self._buffers = [query.new_empty(size) for _ in range(number)]

    def of_shape(self, shape: tuple[int, ...]) -> list[Tensor]:
        """Return uninitialized tensors of a shape that use the buffers' memory."""
        size = torch.Size(shape).numel()
        return [buffer[:size].view(shape) for buffer in self._buffers]


class _SequenceGroup:
    """G sequences, or some heads of one, that share matrix products; with dropout there are decisions and a grid."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        decisions: Tensor | None,
        grid: DropoutGrid | None,
    ) -> None:
        self.inputs = query, key, value
        self.bias, self.decisions, self.grid = bias, decisions, grid
        self.shape = (*query.shape[:3], key.shape[2])
        self._scale = query.shape[-1] ** -0.5

    def attend(self, buffers: _WeightBuffers) -> Tensor:
        """Return the result with dropout <float>[G, H, Q, d_h]; needs two buffers."""
        assert self.decisions is not None and self.grid is not None
        weights, kept = buffers.of_shape(self.shape)
        query, key, value = (each.flatten(0, 1) for each in self.inputs)
        self._compute_weights(query, key, weights)
        # Writing the comparison as floats saves a pass that would convert booleans.
        torch.ge(self.decisions, self.grid.threshold, out=kept)
        output = _product(weights.mul_(kept).flatten(0, 1), value, self.grid.scale)
        return output.unflatten(0, self.shape[:2])

    def gradients(self, gradient: Tensor, of_bias: Tensor | None, buffers: _WeightBuffers) -> tuple[Tensor, ...]:
        """Recompute the weights; return the gradients of query, key and value. Needs two buffers, or four with dropout.

        ``gradient`` <float>[G, H, Q, d_h] is that of the result; the bias's is added to ``of_bias`` [G or 1, H, Q, S].
        """
        query, key, value, gradient = (each.flatten(0, 1) for each in (*self.inputs, gradient))
        weights, of_logits, *more = buffers.of_shape(self.shape)
        self._compute_weights(query, key, weights)
        torch.bmm(gradient, value.transpose(1, 2), out=of_logits.flatten(0, 1))
        dropped, rescale = weights, 1.0
        if self.decisions is not None and self.grid is not None:
            kept, dropped = more
            torch.ge(self.decisions, self.grid.threshold, out=kept)
            torch.mul(weights, kept, out=dropped)
            of_logits.mul_(kept)
            rescale = self.grid.scale
        of_value = _product(dropped.flatten(0, 1).transpose(1, 2), gradient, rescale)
        # The kernel reads a whole row before it writes it, so it can work in place.
        torch.ops.aten._softmax_backward_data.out(of_logits, weights, -1, weights.dtype, grad_input=of_logits)
        if of_bias is not None:
            shared = len(of_bias) < len(of_logits)
            of_bias.add_(of_logits.sum(dim=0, keepdim=True) if shared else of_logits, alpha=rescale)
        of_logits = of_logits.flatten(0, 1)
        of_query = _product(of_logits, key, self._scale * rescale)
        of_key = _product(of_logits.transpose(1, 2), query, self._scale * rescale)
        return tuple(each.unflatten(0, self.shape[:2]) for each in (of_query, of_key, of_value))

    def _compute_weights(self, query: Tensor, key: Tensor, weights: Tensor) -> None:
        """Write softmax(Q K^T / sqrt(d_h) + bias) into ``weights``; queries and keys are [G * H, ...]."""
        if self.bias is not None:
            weights.copy_(self.bias)
        flat, beta = weights.flatten(0, 1), 0.0 if self.bias is None else 1.0
        torch.baddbmm(flat, query, key.transpose(1, 2), beta=beta, alpha=self._scale, out=flat)
        torch.softmax(weights, dim=-1, out=weights)


def _product(first: Tensor, second: Tensor, scale: float) -> Tensor:
    """Compute scale * first @ second, batched, into a new contiguous tensor; torch is slow with strided outputs."""
    output = first.new_empty(*first.shape[:2], second.shape[2])
    return torch.baddbmm(output, first, second, beta=0.0, alpha=scale, out=output)


def _groups(
    tensors: tuple[Tensor, ...], bias: Tensor | None, decisions: Tensor | None, grid: DropoutGrid | None
) -> Iterator[tuple[_Part, _SequenceGroup]]:
    """Yield each group of sequences, with its slices of the batch and of the heads."""
    query, key, value = tensors
    sequences, heads = _together(query, key)
    for start, first in product(range(0, len(query), sequences), range(0, query.shape[1], heads)):
        part = slice(start, start + sequences), slice(first, first + heads)
        drawn = None if decisions is None else decisions[part]
        part_of_bias = None if bias is None else _part_of_bias(bias, part)
        yield part, _SequenceGroup(query[part], key[part], value[part], part_of_bias, drawn, grid)


def _part_of_bias(bias: Tensor, part: _Part) -> Tensor:
    """Select sequences and heads of a bias <float>[B or 1, H or 1, Q or 1, S]."""
    sequences, heads = part
    bias = bias if len(bias) == 1 else bias[sequences]
    return bias if bias.shape[1] == 1 else bias[:, heads]


def _for_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return contiguous tensors in half precision: there, oneDNN would copy others slowly in every product."""
    return tuple(each.contiguous() if each.dtype.itemsize == 2 else each for each in tensors)


def _gradient_buffers(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Allocate the gradients of query, key and value, in one tensor [B, S, 3, H, d_h] if their shapes allow it."""
    if query.shape == key.shape == value.shape:
        batch, heads, length, width = query.shape
        return list(query.new_empty(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4).unbind())
    return [each.new_empty(each.transpose(1, 2).shape).transpose(1, 2) for each in (query, key, value)]


class _Attention(torch.autograd.Function):
    """Attention with a dense bias. Autograd sees only tensor arguments, so ``bias.order`` is also passed separately."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        order: Tensor | None,
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
            # Stored as [B, Q, H, d_h], because the next matrix product reads all heads of a position.
            output = query.new_empty(*query.transpose(1, 2).shape[:3], value.shape[-1]).transpose(1, 2)
            buffers = _WeightBuffers(query, key, 2)
            for part, group in _groups(_for_products(query, key, value), bias.values, decisions, ctx.grid):
                output[part] = group.attend(buffers)
            return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *drawn = ctx.saved_tensors
        decisions = drawn[0] if drawn else None
        gradients = _gradient_buffers(query, key, value)
        wants_bias = ctx.bias.gradient_sum is not None and ctx.needs_input_grad[3]
        of_bias = ctx.bias.gradient_sum.buffer() if wants_bias else None
        buffers = _WeightBuffers(query, key, 2 if decisions is None else 4)
        query, key, value, gradient = _for_products(query, key, value, gradient)
        for part, group in _groups((query, key, value), ctx.bias.values, decisions, ctx.grid):
            sums = None if of_bias is None else _part_of_bias(of_bias, part)
            for buffer, computed in zip(gradients, group.gradients(gradient[part], sums, buffers)):
                buffer[part] = computed
        order = None if ctx.bias.order is None else torch.zeros_like(ctx.bias.order)
        return (*gradients, order, None, None)


# Windows of local attention

# The blocks of all sequences are stored in one buffer, one after another, so that a block with its two neighbors is a
# strided view. Keys of other sequences in such a window have to be hidden. Only this buffer and the result are kept for
# the backward pass; copies of the windows would take four times as much memory.


def attend_windows(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, size: int) -> Tensor:
    """Attend from each block of ``size`` queries to three blocks of keys; all, and the result, are [B, H, S, d_h].

    ``hidden`` <float>[B * blocks, 1, size, 3 * size] is the bias of the logits.
    """
    return _Windows.apply(query, key, value, hidden, size)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, size: int) -> Tensor:
        ctx.size, ctx.length = size, query.shape[2]
        buffer = _buffer((query, key, value), size)
        blocks = _blocks(buffer, size)
        output, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*blocks, attn_mask=hidden)
        ctx.save_for_backward(buffer, output, log_sums, hidden)
        return _sequences(output.transpose(1, 2), len(query), ctx.length).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        buffer, output, log_sums, hidden = ctx.saved_tensors
        batch, size, number = len(gradient), ctx.size, len(output)
        gradient = F.pad(gradient.transpose(1, 2), (0, 0, 0, 0, 0, -ctx.length % size)).reshape(
            number, size, *gradient.shape[1::2]
        )
        of_query, *of_windows = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient.transpose(1, 2), *_blocks(buffer, size), output, log_sums, 0.0, False, attn_mask=hidden
        )
        gradients = torch.empty_like(buffer[size:-size]).unflatten(0, (number, size))
        gradients[:, :, 0] = of_query.transpose(1, 2)
        for part, windows in enumerate(of_windows, 1):
            before, center, after = windows.transpose(1, 2).unflatten(1, (3, size)).unbind(1)
            blocks = gradients[:, :, part]
            blocks.copy_(center)
            blocks[:-1] += before[1:]
            blocks[1:] += after[:-1]
        parts = _sequences(gradients, batch, ctx.length).permute(2, 0, 3, 1, 4)
        return (*parts, None, None)


def _buffer(parts: tuple[Tensor, ...], size: int) -> Tensor:
    """Return <float>[(B * blocks + 2) * size, parts, H, d_h] with a block of zeros at both ends."""
    batch, heads, length, width = parts[0].shape
    padded = length + -length % size
    buffer = parts[0].new_empty(batch * padded + 2 * size, len(parts), heads, width)
    buffer[:size] = buffer[-size:] = 0.0
    inside = buffer[size:-size].unflatten(0, (batch, padded))
    inside[:, length:] = 0.0
    for number, part in enumerate(parts):
        inside[:, :length, number] = part.transpose(1, 2)
    return buffer


def _blocks(buffer: Tensor, size: int) -> list[Tensor]:
    """Return views [B * blocks, H, size, d_h] of queries, and [B * blocks, H, 3 * size, d_h] of keys and values."""
    query, *others = buffer.unbind(1)
    blocks = query[size:-size].unflatten(0, (-1, size)).transpose(1, 2)
    return [blocks, *(each.unfold(0, 3 * size, size).permute(0, 1, 3, 2) for each in others)]


def _sequences(blocks: Tensor, batch: int, length: int) -> Tensor:
    """Join blocks [B * blocks, size, ...] into sequences [B, S, ...]."""
    return blocks.flatten(0, 1).unflatten(0, (batch, -1))[:, :length]
