"""Launches the Triton kernels of attention with a learned relative bias: block sizes, buffers, order.

Importing this module imports triton.
"""

import math
from typing import Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import gradients as gradient_kernels
from . import kernels

LOG2_E = math.log2(math.e)
# Programs of the pair gradient over the whole grid; large batches are summed in parts to get there. Fixed and not
# read from the device, so that a run gives the same numbers on any of them.
PAIR_PROGRAMS = 1024


class Block(NamedTuple):
    """What one program of a kernel works on, and how."""

    rows: int  # that it owns
    columns: int  # of the other side in one step of its loop
    warps: int
    stages: int  # steps of the loop whose loads are under way at once


# A table and no autotuner: timing kernels at start-up would choose other block sizes, and so other sums, from one run
# to the next, and resuming would no longer be exact. By bytes of an element and the width of a head up to which it
# serves.
BLOCKS: Dict[Tuple[str, int, int], Block] = {
    ("forward", 2, 64): Block(128, 64, 8, 2),
    ("forward", 2, 128): Block(128, 64, 8, 2),
    ("forward", 4, 64): Block(64, 32, 4, 2),
    ("forward", 4, 128): Block(32, 32, 4, 2),
    ("query gradient", 2, 64): Block(128, 64, 8, 2),
    ("query gradient", 2, 128): Block(64, 64, 8, 2),
    ("query gradient", 4, 64): Block(32, 32, 4, 2),
    ("query gradient", 4, 128): Block(32, 32, 4, 1),
    ("key and value gradient", 2, 64): Block(128, 64, 8, 2),
    ("key and value gradient", 2, 128): Block(64, 64, 8, 1),
    ("key and value gradient", 4, 64): Block(32, 32, 4, 2),
    ("key and value gradient", 4, 128): Block(32, 32, 4, 1),
    ("pair gradient", 2, 64): Block(128, 64, 8, 2),
    ("pair gradient", 2, 128): Block(64, 64, 8, 1),
    ("pair gradient", 4, 64): Block(32, 32, 4, 2),
    ("pair gradient", 4, 128): Block(32, 32, 4, 1),
}


class _Attention(NamedTuple):
    """The inputs of one call as the kernels want them; layouts in ``kernels``."""

    query: Tensor
    key: Tensor
    value: Tensor
    table: Tensor
    positions: Tensor
    lengths: Optional[Tensor]
    dropout: float

    @property
    def numbers(self) -> Tuple[int, ...]:
        """Strides of queries, keys, values and positions, H, S and P, in the order of the kernels' arguments."""
        strides = self.query.stride()[:3]
        stride_positions = 0 if self.positions.shape[0] == 1 else self.positions.stride(0)
        _, heads, length, _ = self.query.shape
        return (*strides, stride_positions, heads, length, self.max_positions)

    @property
    def max_positions(self) -> int:
        """P."""
        return (self.table.shape[1] + 1) // 2

    @property
    def scale(self) -> float:
        """What a dot product of query and key is multiplied with."""
        return float(self.query.shape[3] ** -0.5)

    def options(self, kernel: str) -> Dict[str, object]:
        """Compile-time constants and launch options of a kernel."""
        head_dim = self.query.shape[3]
        width = max(16, 1 << (head_dim - 1).bit_length())
        block = BLOCKS[kernel, self.query.element_size(), 64 if width <= 64 else 128]
        return {
            "THRESHOLD": round(self.dropout * 2**32),
            "HEAD_DIM": head_dim,
            "BLOCK_D": width,
            # float32 products follow torch's own setting; it has no meaning for half precision.
            "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "ROWS": block.rows,
            "COLUMNS": block.columns,
            "num_warps": block.warps,
            "num_stages": block.stages,
        }


def _prepare(
    query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor, lengths: Optional[Tensor],
    dropout: float,
) -> _Attention:  # fmt: skip
    """Bring the inputs into the kernels' layout; views of one joint tensor are already in it and are not copied."""
    if not query.stride() == key.stride() == value.stride() or query.stride(3) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    lengths = None if lengths is None else lengths.contiguous()
    return _Attention(query, key, value, of_distance * LOG2_E, positions.contiguous(), lengths, dropout)


def _blocks(attention: _Attention, options: Dict[str, object]) -> Tuple[int]:
    """The grid of a kernel whose programs own rows of one sequence and head."""
    batch, heads, length, _ = attention.query.shape
    rows = options["ROWS"]
    assert isinstance(rows, int)
    return (batch * heads * (-(-length // rows)),)


def dropout_words(attention: _Attention, seed: Optional[Tensor]) -> Tensor:
    """Draw the random words that decide on dropout: <int32>[B, H, 2, S], or empty without dropout."""
    batch, heads, length, _ = attention.query.shape
    if seed is None or attention.dropout == 0:
        return attention.query.new_empty(0, dtype=torch.int32)
    words = attention.query.new_empty(batch, heads, 2, length, dtype=torch.int32)
    stride_positions, block = attention.numbers[3], 1024
    count = batch * heads * length
    kernels.dropout_words_kernel[(-(-count // block),)](
        seed, attention.positions, words, stride_positions, heads, length, count, BLOCK=block
    )
    return words


def forward(
    query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor, lengths: Optional[Tensor],
    dropout: float, seed: Optional[Tensor],
) -> Tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attend; arguments as in ``attention_triton.relative_attention``.

    Returns:
        output <float>[B, S, H, d_h], log sums <float32>[B, H, S], dropout's words <int32>[B, H, 2, S] or empty.
    """
    with torch.cuda.device_of(query):
        attention = _prepare(query, key, value, of_distance, positions, lengths, dropout)
        words = dropout_words(attention, seed)
        batch, heads, length, head_dim = query.shape
        output = query.new_empty(batch, length, heads, head_dim)
        log_sums = query.new_empty(batch, heads, length, dtype=torch.float32)
        options = attention.options("forward")
        kernels.forward_kernel[_blocks(attention, options)](
            *attention[:6], words, output, log_sums, *attention.numbers, attention.scale * LOG2_E, **options
        )
    return output, log_sums, words


def backward(
    output_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor,
    lengths: Optional[Tensor], dropout: float, output: Tensor, log_sums: Tensor, words: Tensor, with_bias: bool,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    """Compute all gradients.

    Args:
        output_gradient: <float>[B, S, H, d_h].
        output, log_sums, words: as returned by ``forward``; the rest as given to it.
        with_bias: whether the gradient of ``of_distance`` is wanted.

    Returns:
        <float>[B, S, 3, H, d_h] of queries, keys and values, and <float32>[H, 2 P - 1], empty if not wanted.
    """
    with torch.cuda.device_of(query):
        attention = _prepare(query, key, value, of_distance, positions, lengths, dropout)
        output_gradient = output_gradient.contiguous()
        batch, heads, length, head_dim = query.shape
        gradients = query.new_empty(batch, length, 3, heads, head_dim)
        deltas = torch.empty_like(log_sums)
        scales = (attention.scale * LOG2_E, attention.scale)
        options = attention.options("query gradient")
        gradient_kernels.query_gradient_kernel[_blocks(attention, options)](
            *attention[:6], words, output, log_sums, output_gradient, deltas, gradients,
            *attention.numbers, *scales, **options,
        )  # fmt: skip
        options = attention.options("key and value gradient")
        gradient_kernels.key_value_gradient_kernel[_blocks(attention, options)](
            *attention[:6], words, log_sums, output_gradient, deltas, gradients,
            *attention.numbers, *scales, **options,
        )  # fmt: skip
        if not with_bias:
            return gradients, of_distance.new_empty(0)
        return gradients, _bias_gradient(attention, words, log_sums, output_gradient, deltas)


def _columns_of_positions(attention: _Attention) -> Tensor:
    """Invert the positions: <int32>[B or 1, P + 1], the column at each position or -1; the last one is for padding."""
    positions, lengths = attention.positions, attention.lengths
    columns = torch.arange(positions.shape[1], dtype=torch.int32, device=positions.device)
    if lengths is not None:
        positions = torch.where(columns < lengths[:, None], positions, attention.max_positions)
    inverse = columns.new_full((positions.shape[0], attention.max_positions + 1), -1)
    return inverse.scatter_(1, positions, columns.expand_as(positions))


def _bias_gradient(
    attention: _Attention, words: Tensor, log_sums: Tensor, output_gradient: Tensor, deltas: Tensor
) -> Tensor:
    """Compute the gradient of the bias of each distance: <float32>[H, 2 P - 1]."""
    batch, heads, _, _ = attention.query.shape
    max_positions = attention.max_positions
    inverse = _columns_of_positions(attention)
    options = attention.options("pair gradient")
    rows, columns = options["ROWS"], options["COLUMNS"]
    assert isinstance(rows, int) and isinstance(columns, int)
    programs = heads * -(-max_positions // rows) * -(-max_positions // columns)
    parts = max(1, min(batch, PAIR_PROGRAMS // programs))
    pairs = log_sums.new_empty(parts, heads, max_positions, max_positions)
    strides, (_, heads, length, _) = attention.numbers[:3], attention.numbers[3:]
    stride_inverse = 0 if inverse.shape[0] == 1 else inverse.stride(0)
    gradient_kernels.pair_gradient_kernel[(programs * parts,)](
        *attention[:4], inverse, words, log_sums, output_gradient, deltas, pairs,
        *strides, stride_inverse, batch, heads, length, max_positions, attention.scale * LOG2_E, **options,
    )  # fmt: skip
    of_distance = log_sums.new_empty(attention.table.shape)
    distances = 64
    gradient_kernels.diagonal_kernel[(heads * -(-of_distance.shape[1] // distances),)](
        pairs, of_distance, parts, heads, max_positions, ROWS=32, DISTANCES=distances
    )
    return of_distance
