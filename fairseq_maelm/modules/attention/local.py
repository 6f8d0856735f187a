"""Local attention: a token reads only tokens within half a window of its original position.

As in ModernBERT (Warner et al., 2024), token i reads token j if |p_i - p_j| <= window // 2, where p are positions in
the full sequence: dropping masked tokens changes no distance. Positions ascend, so |i - j| <= |p_i - p_j|, and a block
of queries needs only the keys of three blocks. The blocks of all sequences form a batch for an ordinary backend: memory
and time grow linearly with the length. The Triton kernels take whole sequences and skip the tiles that the window
hides.
"""

from enum import Enum
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_maelm.batch import padding_mask
from fairseq_maelm.modules.attention.context import Attend, AttentionContext, Tokens, Visibility
from fairseq_maelm.modules.attention.cpu import attend_windows

# Smaller blocks make matrix products too small to be efficient.
_SMALLEST_BLOCK = 16
# Up to this number of blocks, computing whole sequences with hidden pairs is as fast: with blocks of 64 and 12 heads of
# 64 on a CPU, it takes 1.0 times as long as blocks at 307 tokens, 1.3 times at 435 and 3.6 times at 1,434. In half
# precision, copies of keys cost more than products: in training with AMX and without dropout, 0.7 times at 359 tokens
# and 1.0 times at 512.
_DENSE_BLOCKS = 5
_HALF_DENSE_BLOCKS = 8


class LocalMethod(Enum):
    """A way to compute local attention: in blocks, in views of blocks, or in whole sequences with parts skipped."""

    BLOCKS = 0
    WINDOWS = 1
    WHOLE = 2


def attend_local(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: AttentionContext,
    window: int,
    dropout: float,
    method: LocalMethod = LocalMethod.BLOCKS,
) -> Tensor:
    """Compute self-attention of <float>[B, H, S, d_h] within a window of tokens, using a backend's function.

    Results at padding are undefined. The context has no window, but the tokens' positions, ascending in each sequence.
    Its ``queries`` are ignored, because all tokens have queries here. ``method`` is for long sequences; short ones are
    computed whole.
    """
    if not context.reads_from_everywhere:
        context = AttentionContext(Tokens(context.keys.positions), context.visibility, context.relative_bias)
    length, size = query.shape[2], block_size(window)
    if method is LocalMethod.WHOLE or length <= _dense_blocks(query, dropout, method) * size:
        return attend(query, key, value, windowed(context, window), dropout)
    blocks = context.once(("blocks", window), partial(blocks_of, context, window, len(query), length))
    if method is LocalMethod.WINDOWS:
        hidden = blocks.dense(key)
        assert hidden is not None, "blocks hide keys outside of their window"
        return attend_windows(query, key, value, hidden, size)
    parts = query_blocks(query, size), key_blocks(key, size), key_blocks(value, size)
    attended = attend(*parts, blocks, dropout).unflatten(0, (len(query), -1))
    return attended.transpose(1, 2).flatten(2, 3)[:, :, :length]


def _dense_blocks(query: Tensor, dropout: float, method: LocalMethod) -> int:
    half = query.device.type == "cpu" and query.dtype.itemsize == 2
    return _HALF_DENSE_BLOCKS if half and not dropout and method is LocalMethod.BLOCKS else _DENSE_BLOCKS


def block_size(window: int) -> int:
    """Return the number of queries in a block: at least the window's reach, so that three blocks of keys suffice."""
    return max(window // 2, _SMALLEST_BLOCK)


def query_blocks(states: Tensor, size: int) -> Tensor:
    """Cut <float>[B, H, S, d_h] into blocks, the last one padded with zeros: [B * blocks, H, size, d_h]."""
    padded = F.pad(states, (0, 0, 0, -states.shape[2] % size))
    return padded.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)


def key_blocks(states: Tensor, size: int) -> Tensor:
    """Cut <float>[B, H, S, d_h] into blocks with their two neighbors: [B * blocks, H, 3 * size, d_h]."""
    padded = F.pad(states, (0, 0, size, size + -states.shape[2] % size)).unflatten(2, (-1, size))
    around = torch.cat([padded[:, :, :-2], padded[:, :, 1:-1], padded[:, :, 2:]], dim=3)
    return around.transpose(1, 2).flatten(0, 1)


def windowed(context: AttentionContext, window: int) -> AttentionContext:
    """Return a copy of the context with a window, the same one in all layers."""
    return context.once(("window", window), partial(_windowed, context, window))


def _windowed(context: AttentionContext, window: int) -> AttentionContext:
    lengths = context.visibility.lengths
    positions = _positions(context, 1 if lengths is None else len(lengths))
    return AttentionContext(
        Tokens(positions, max_positions=context.keys.max_positions),
        context.visibility._replace(window=window),
        context.relative_bias,
        None if context.reads_from_everywhere else context.queries,
        context.outputs,
    )


def blocks_of(context: AttentionContext, window: int, sequences: int, length: int) -> AttentionContext:
    """Return the context of ``query_blocks`` and ``key_blocks``, one entry for each block: [B * blocks].

    Entries are not shared between sequences, even if these have equal positions and no padding.
    """
    size = block_size(window)
    positions = _positions(context, sequences).expand(sequences, -1)
    inside = torch.ones_like(positions, dtype=torch.bool)
    if context.visibility.lengths is not None:
        inside = ~padding_mask(context.visibility.lengths, length)
    starts = torch.arange(0, length, size, device=positions.device)[:, None]
    keys = starts - size + torch.arange(3 * size, device=positions.device)
    hidden = ~inside[:, keys.clamp(0, length - 1)] | (keys < 0) | (keys >= length)
    queries = (starts + torch.arange(size, device=positions.device)).clamp(max=length - 1)
    return AttentionContext(
        Tokens(positions[:, keys.clamp(0, length - 1)].flatten(0, 1)),
        Visibility(hidden=hidden.flatten(0, 1), window=window),
        context.relative_bias,
        Tokens(positions[:, queries].flatten(0, 1)),
    )


def _positions(context: AttentionContext, sequences: int) -> Tensor:
    """Return the positions, with padding at the position of the sequence's last token.

    Otherwise the window could hide every token from a padding query, and its softmax would be NaN.
    """
    positions, lengths = context.keys.positions, context.visibility.lengths
    assert positions is not None, "local attention needs positions"
    if lengths is None:
        return positions
    positions = positions.expand(sequences, -1)
    last = (lengths - 1).clamp(min=0)[:, None]
    columns = torch.arange(positions.shape[1], device=positions.device)
    return positions.gather(1, columns[None].minimum(last))
