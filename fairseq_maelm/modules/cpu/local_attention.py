"""Local attention on a CPU by torch's fused function, with windows of keys that are views instead of copies.

The blocks of all sequences are stored in one buffer, one after another, so that a block with its two neighbors is a
strided view. Keys of other sequences in such a window have to be hidden. Only this buffer and the result are kept for
the backward pass; copies of the windows would take four times as much memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def attend_windows(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, size: int) -> Tensor:
    """Attend from each block of ``size`` queries to three blocks of keys.

    Args:
        query: <float>[B, H, S, d_h].
        key: as ``query``.
        value: as ``query``.
        hidden: <float>[B * blocks, 1, size, 3 * size] bias of the logits.
        size: number of queries in a block.

    Returns:
        <float>[B, H, S, d_h].
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
