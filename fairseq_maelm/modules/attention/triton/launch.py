"""Launch the Triton kernels of attention with a learned relative bias.

Importing this module imports triton.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import gradients as gradient_kernels
from . import kernels, padded_length

LOG2_E = math.log2(math.e)
# Minimum number of programs for the pair gradient; large batches are split into parts to reach it. It is the same on
# all devices, so that all devices give the same numbers.
PAIR_PROGRAMS = 1024


class Block(NamedTuple):
    """Block sizes and launch options of a kernel."""

    rows: int  # rows that one program computes
    columns: int  # columns in one step of the program's loop
    warps: int
    stages: int  # steps of the loop whose loads are in flight together


# An autotuner could choose different block sizes, and so orders of summation, in each run: resuming would not be exact.
# Keys: (kernel, bytes of an element, widest head).
BLOCKS: dict[tuple[str, int, int], Block] = {
    ("forward", 2, 64): Block(64, 128, 4, 2),
    ("forward", 2, 128): Block(128, 64, 8, 2),
    ("forward", 4, 64): Block(64, 32, 4, 2),
    ("forward", 4, 128): Block(32, 32, 4, 2),
    ("query gradient", 2, 64): Block(64, 64, 4, 2),
    ("query gradient", 2, 128): Block(64, 64, 8, 2),
    ("query gradient", 4, 64): Block(32, 32, 4, 2),
    ("query gradient", 4, 128): Block(32, 32, 4, 1),
    ("key and value gradient", 2, 64): Block(64, 64, 4, 2),
    ("key and value gradient", 2, 128): Block(64, 64, 8, 1),
    ("key and value gradient", 4, 64): Block(32, 32, 4, 2),
    ("key and value gradient", 4, 128): Block(32, 32, 4, 1),
    ("pair gradient", 2, 64): Block(64, 64, 4, 1),
    ("pair gradient", 2, 128): Block(64, 64, 8, 1),
    ("pair gradient", 4, 64): Block(32, 32, 4, 2),
    ("pair gradient", 4, 128): Block(32, 32, 4, 1),
}


class Prepared(NamedTuple):
    """The arguments shared by all kernels of a call, in the layouts that ``kernels`` describes."""

    query: Tensor
    key: Tensor
    value: Tensor
    table: Tensor
    places: Tensor
    tokens: Tensor
    words: Tensor
    dropout: float
    max_positions: int
    reach: int
    # ``inverse``, ``hidden``, ``words_of_positions`` and ``extents`` of ``prepare_kernel``, for the pair gradient; None
    # in other passes.
    by_position: tuple[Tensor | None, ...] = (None, None, None, None)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Strides of queries, keys and values, and H, S, S' and P, in the order of the kernels' arguments."""
        _, heads, length, _ = self.query.shape
        return (*self.query.stride()[:3], heads, length, self.places.shape[1], self.max_positions)

    @property
    def scale(self) -> float:
        """The factor 1 / sqrt(d_h) of query-key products."""
        return float(self.query.shape[3] ** -0.5)

    def options(self, kernel: str) -> dict[str, Any]:
        """Compile-time constants and launch options of a kernel."""
        head_dim = self.query.shape[3]
        width = max(16, 1 << (head_dim - 1).bit_length())
        block = BLOCKS[kernel, self.query.element_size(), 64 if width <= 64 else 128]
        return {
            "THRESHOLD": round(self.dropout * 2**32),
            "HEAD_DIM": head_dim,
            "BLOCK_D": width,
            # Matrix products of float32 follow torch's setting. It does not affect half precision.
            "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "ROWS": block.rows,
            "COLUMNS": block.columns,
            "REACH": self.reach,
            "num_warps": block.warps,
            "num_stages": block.stages,
            # Triton 3.10 does not fuse multiplications and additions by default.
            "enable_fp_fusion": True,
        }

    def grid(self, options: dict[str, Any]) -> tuple[int]:
        """Return the grid of a kernel in which each program computes rows of one sequence and one head."""
        batch, heads, _, _ = self.query.shape
        return (batch * heads * (self.places.shape[1] // options["ROWS"]),)


def prepare(
    query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor, lengths: Tensor | None,
    dropout: float, seed: Tensor | None, window: int | None = None, with_bias: bool = False,
) -> Prepared:  # fmt: skip
    """Convert the inputs to the kernels' layouts; views of one joint tensor are not copied."""
    if not query.stride() == key.stride() == value.stride() or query.stride(3) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    batch, heads, length, _ = query.shape
    padded, max_positions = padded_length(length), (of_distance.shape[1] + 1) // 2
    padded_positions = padded_length(max_positions)
    seed = seed if dropout > 0 else None

    def empty(*shape: int) -> Tensor:
        return query.new_empty(shape, dtype=torch.int32)

    def words(columns: int) -> Tensor:
        return empty(0) if seed is None else empty(batch, heads, 3, columns)

    by_position: tuple[Tensor | None, ...] = (None, None, None, None)
    if with_bias:
        shape = (batch, padded_positions)
        by_position = (empty(*shape), of_distance.new_empty(shape), words(padded_positions), empty(batch))
    prepared = Prepared(
        query, key, value, of_distance.new_empty(heads, 4 * max_positions + 1), empty(batch, padded), empty(batch),
        words(padded), dropout, max_positions, -1 if window is None else window // 2, by_position,
    )  # fmt: skip
    positions = positions.contiguous()
    kernels.prepare_kernel[(batch * heads,)](
        of_distance.contiguous(), positions, None if lengths is None else lengths.contiguous(), seed,
        *prepared[3:7], *prepared.by_position, 0 if len(positions) == 1 else length, heads, length,
        padded, max_positions, padded_positions, BLOCK=512, REACH=prepared.reach,
    )  # fmt: skip
    return prepared


def forward(
    query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor, lengths: Tensor | None,
    dropout: float, seed: Tensor | None, window: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attend as ``relative_attention`` does; return output <float>[B, S, H, d_h] and log sums <float32>[B, H, S']."""
    with torch.cuda.device_of(query):
        prepared = prepare(query, key, value, of_distance, positions, lengths, dropout, seed, window)
        batch, heads, length, head_dim = query.shape
        output = query.new_empty(batch, length, heads, head_dim)
        log_sums = query.new_empty(batch, heads, padded_length(length), dtype=torch.float32)
        options = prepared.options("forward")
        kernels.forward_kernel[prepared.grid(options)](
            *prepared[:7], output, log_sums, *prepared.numbers, prepared.scale * LOG2_E, **options
        )
    return output, log_sums


def backward(
    output_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, of_distance: Tensor, positions: Tensor,
    lengths: Tensor | None, dropout: float, seed: Tensor | None, window: int | None, output: Tensor, log_sums: Tensor,
    with_bias: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute all gradients, given the gradient of the output <float>[B, S, H, d_h] and the results of ``forward``.

    They are <float>[B, S, 3, H, d_h] of queries, keys and values, and <float32>[H, 2 P - 1] of ``of_distance``, which
    is empty without ``with_bias``.
    """
    with torch.cuda.device_of(query):
        prepared = prepare(query, key, value, of_distance, positions, lengths, dropout, seed, window, with_bias)
        output_gradient = output_gradient.contiguous()
        batch, heads, length, head_dim = query.shape
        gradients = query.new_empty(batch, length, 3, heads, head_dim)
        deltas = torch.empty_like(log_sums)
        scales = (prepared.scale * LOG2_E, prepared.scale / (1 - dropout))
        options = prepared.options("query gradient")
        gradient_kernels.query_gradient_kernel[prepared.grid(options)](
            *prepared[:7], output, log_sums, output_gradient, deltas, gradients,
            *prepared.numbers, *scales, **options,
        )  # fmt: skip
        options = prepared.options("key and value gradient")
        gradient_kernels.key_value_gradient_kernel[prepared.grid(options)](
            *prepared[:7], log_sums, output_gradient, deltas, gradients,
            *prepared.numbers, *scales, **options,
        )  # fmt: skip
        if not with_bias:
            return gradients, of_distance.new_empty(0)
        return gradients, _bias_gradient(prepared, log_sums, output_gradient, deltas)


def _bias_gradient(prepared: Prepared, log_sums: Tensor, output_gradient: Tensor, deltas: Tensor) -> Tensor:
    """Compute the bias gradient for each distance, <float32>[H, 2P - 1]."""
    inverse, hidden, words, extents = prepared.by_position
    assert inverse is not None and extents is not None
    batch, heads, length, _ = prepared.query.shape
    max_positions = prepared.max_positions
    options = prepared.options("pair gradient")
    rows, columns = options["ROWS"], options["COLUMNS"]
    visits = extents.new_empty(-(-max_positions // columns), batch + 1)
    gradient_kernels.visits_kernel[(len(visits),)](extents, visits, batch, POSITIONS=columns, BLOCK=512)
    programs = heads * -(-max_positions // rows) * -(-max_positions // columns)
    parts = max(1, min(batch, PAIR_PROGRAMS // programs))
    pairs = log_sums.new_empty(parts, heads, max_positions, max_positions)
    strides, (*_, padded, _) = prepared.numbers[:3], prepared.numbers[3:]
    gradient_kernels.pair_gradient_kernel[(programs * parts,)](
        *prepared[:4], inverse, hidden, visits, words, log_sums, output_gradient, deltas, pairs,
        *strides, batch, heads, length, padded, max_positions, inverse.shape[1], prepared.scale * LOG2_E,
        POSITIONS=columns, **options,
    )  # fmt: skip
    of_distance = log_sums.new_empty(heads, 2 * max_positions - 1)
    distances = 64
    gradient_kernels.diagonal_kernel[(heads * -(-of_distance.shape[1] // distances),)](
        pairs, of_distance, parts, heads, max_positions, ROWS=32, DISTANCES=distances
    )
    return of_distance
