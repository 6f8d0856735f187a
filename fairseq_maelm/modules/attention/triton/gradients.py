"""Triton kernels of attention with a learned relative bias: the backward pass.

Names and layouts as in ``kernels``. With G the gradient of the output, a weight's gradient is
G value^T (zero where dropout removed the weight), and a logit's is weight * (weight's gradient - delta), delta being
the row's sum of weight * weight's gradient, which equals output . G (Dao et al., 2022, appendix B.4).

    deltas      <float32>[B, H, S]
    inverse     <int32>[B or 1, P] the column that stands at each position, or -1
    pairs       <float32>[parts, H, P, P] sum of the logits' gradients over a part of the batch, by both positions
"""

# Parameters of kernels are pointers and numbers to Triton's compiler; only compile-time constants carry a type.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .kernels import kept_by_dropout, load_rows, load_words, place_of_program, store_rows


@triton.jit
def weights_and_gradient(
    left, right, left_value, right_value, bias, log_sums, deltas, words, scale,
    THRESHOLD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Recompute a block of attention weights, after dropout, and the gradient of its logits.

    ``left . right`` are queries and keys and ``left_value . right_value`` the output's gradient and values, or both the
    other way round; the block is <float32>[left, right], and the other arguments have, or broadcast to, that shape.
    """
    weights = tl.exp2(tl.dot(left, tl.trans(right), input_precision=PRECISION) * scale + (bias - log_sums))
    gradient = tl.dot(left_value, tl.trans(right_value), input_precision=PRECISION)
    after_dropout = weights
    if THRESHOLD > 0:
        factor = tl.where(kept_by_dropout(words, THRESHOLD), 1 / (1 - THRESHOLD / 4294967296.0), 0.0)
        after_dropout = weights * factor
        gradient = gradient * factor
    return after_dropout, weights * (gradient - deltas)


@triton.jit(do_not_specialize=["length"])
def query_gradient_kernel(
    query, key, value, table, positions, lengths, words, output, log_sums, output_gradient, deltas, gradients,
    stride_batch, stride_head, stride_row, stride_positions, heads, length, max_positions, scale, plain_scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of queries, and its deltas, which the other kernels read afterwards."""
    batch, head, first, tokens, end = place_of_program(lengths, heads, length, ROWS)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * length
    joined = (batch * length * heads + head) * HEAD_DIM
    table += head * (2 * max_positions - 1) + max_positions - 1
    positions += batch * stride_positions
    rows = first + tl.arange(0, ROWS)
    valid = rows < tokens
    query_rows = load_rows(query + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    gradient_rows = load_rows(output_gradient + joined, rows, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
    output_rows = load_rows(output + joined, rows, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
    row_deltas = tl.sum(output_rows.to(tl.float32) * gradient_rows.to(tl.float32), 1)
    tl.store(deltas + by_row + rows, row_deltas, mask=rows < length)
    row_log_sums = tl.load(log_sums + by_row + rows, mask=valid, other=float("inf"))
    row_positions = tl.load(positions + rows, mask=valid, other=0).to(tl.int32)
    row_words = load_words(words + 2 * by_row, rows, valid, THRESHOLD)
    query_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(0, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < tokens
        key_rows = load_rows(key + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        value_rows = load_rows(value + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        distances = tl.load(positions + columns, mask=inside, other=0).to(tl.int32)[None, :] - row_positions[:, None]
        bias = tl.load(table + distances, mask=inside[None, :], other=float("-inf"))
        column_words = load_words(words + 2 * by_row + length, columns, inside, THRESHOLD)
        _, logit_gradient = weights_and_gradient(
            query_rows, key_rows, gradient_rows, value_rows, bias, row_log_sums[:, None], row_deltas[:, None],
            row_words[:, None] ^ column_words[None, :], scale, THRESHOLD, PRECISION,
        )  # fmt: skip
        query_gradient = tl.dot(logit_gradient.to(key_rows.dtype), key_rows, query_gradient, input_precision=PRECISION)
    gradients += (batch * length * 3 * heads + head) * HEAD_DIM
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, query_gradient * plain_scale, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=["length"])
def key_value_gradient_kernel(
    query, key, value, table, positions, lengths, words, log_sums, output_gradient, deltas, gradients,
    stride_batch, stride_head, stride_row, stride_positions, heads, length, max_positions, scale, plain_scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and values; rows are keys, columns queries."""
    batch, head, first, tokens, end = place_of_program(lengths, heads, length, ROWS)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * length
    output_gradient += (batch * length * heads + head) * HEAD_DIM
    table += head * (2 * max_positions - 1) + max_positions - 1
    positions += batch * stride_positions
    rows = first + tl.arange(0, ROWS)
    valid = rows < tokens
    key_rows = load_rows(key + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    value_rows = load_rows(value + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    row_positions = tl.load(positions + rows, mask=valid, other=0).to(tl.int32)
    row_words = load_words(words + 2 * by_row + length, rows, valid, THRESHOLD)
    key_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    value_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(0, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < tokens
        query_rows = load_rows(query + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient, columns, heads * HEAD_DIM, inside, HEAD_DIM, BLOCK_D)
        distances = row_positions[:, None] - tl.load(positions + columns, mask=inside, other=0).to(tl.int32)[None, :]
        bias = tl.load(table + distances, mask=valid[:, None], other=float("-inf"))
        column_log_sums = tl.load(log_sums + by_row + columns, mask=inside, other=float("inf"))
        column_deltas = tl.load(deltas + by_row + columns, mask=inside, other=0.0)
        column_words = load_words(words + 2 * by_row, columns, inside, THRESHOLD)
        weights, logit_gradient = weights_and_gradient(
            key_rows, query_rows, value_rows, gradient_rows, bias, column_log_sums[None, :], column_deltas[None, :],
            row_words[:, None] ^ column_words[None, :], scale, THRESHOLD, PRECISION,
        )  # fmt: skip
        value_gradient = tl.dot(weights.to(key_rows.dtype), gradient_rows, value_gradient, input_precision=PRECISION)
        key_gradient = tl.dot(logit_gradient.to(key_rows.dtype), query_rows, key_gradient, input_precision=PRECISION)
    gradients += ((batch * length * 3 + 1) * heads + head) * HEAD_DIM
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, key_gradient * plain_scale, HEAD_DIM, BLOCK_D)
    store_rows(gradients + heads * HEAD_DIM, rows, 3 * heads * HEAD_DIM, length, value_gradient, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=["batches", "length"])
def pair_gradient_kernel(
    query, key, value, table, inverse, words, log_sums, output_gradient, deltas, pairs,
    stride_batch, stride_head, stride_row, stride_inverse, batches, heads, length, max_positions, scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum the logits' gradients of one block of (query's position, key's position) over a part of the batch.

    A block belongs to one program, so the sum stays in registers, needs no atomic addition and is the same every time.
    """
    row_blocks = tl.cdiv(max_positions, ROWS)
    blocks = row_blocks * tl.cdiv(max_positions, COLUMNS)
    part, head = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    parts = tl.num_programs(0) // blocks // heads
    rows = tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % blocks // row_blocks * COLUMNS + tl.arange(0, COLUMNS)
    distances = tl.maximum(tl.minimum(columns[None, :] - rows[:, None], max_positions - 1), 1 - max_positions)
    bias = tl.load(table + head * (2 * max_positions - 1) + max_positions - 1 + distances)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for sequence in range(part, batches, parts):
        batch = tl.cast(sequence, tl.int64)
        row_index = tl.load(inverse + batch * stride_inverse + rows, mask=rows < max_positions, other=-1)
        column_index = tl.load(inverse + batch * stride_inverse + columns, mask=columns < max_positions, other=-1)
        valid, inside = row_index >= 0, column_index >= 0
        start = batch * stride_batch + head * stride_head
        by_row = (batch * heads + head) * length
        joined = (batch * length * heads + head) * HEAD_DIM
        query_rows = load_rows(query + start, row_index, stride_row, valid, HEAD_DIM, BLOCK_D)
        key_rows = load_rows(key + start, column_index, stride_row, inside, HEAD_DIM, BLOCK_D)
        value_rows = load_rows(value + start, column_index, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient + joined, row_index, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
        row_log_sums = tl.load(log_sums + by_row + row_index, mask=valid, other=float("inf"))
        row_deltas = tl.load(deltas + by_row + row_index, mask=valid, other=0.0)
        row_words = load_words(words + 2 * by_row, row_index, valid, THRESHOLD)
        column_words = load_words(words + 2 * by_row + length, column_index, inside, THRESHOLD)
        _, logit_gradient = weights_and_gradient(
            query_rows, key_rows, gradient_rows, value_rows, bias, row_log_sums[:, None], row_deltas[:, None],
            row_words[:, None] ^ column_words[None, :], scale, THRESHOLD, PRECISION,
        )  # fmt: skip
        total += tl.where(inside[None, :], logit_gradient, 0.0)
    pairs += tl.cast(part * heads + head, tl.int64) * max_positions * max_positions
    places = pairs + rows[:, None] * max_positions + columns[None, :]
    tl.store(places, total, mask=(rows < max_positions)[:, None] & (columns < max_positions)[None, :])


@triton.jit
def diagonal_kernel(pairs, of_distance, parts, heads, max_positions, ROWS: tl.constexpr, DISTANCES: tl.constexpr):
    """Sum ``pairs`` over its parts and along each diagonal: <float32>[H, 2 P - 1]."""
    distances = 2 * max_positions - 1
    blocks = tl.cdiv(distances, DISTANCES)
    head = tl.program_id(0) // blocks
    columns = tl.program_id(0) % blocks * DISTANCES + tl.arange(0, DISTANCES)
    total = tl.zeros([DISTANCES], tl.float32)
    for part in range(parts):
        start = pairs + tl.cast(part * heads + head, tl.int64) * max_positions * max_positions
        for begin in range(0, max_positions, ROWS):
            rows = begin + tl.arange(0, ROWS)
            keys = rows[:, None] + columns[None, :] - (max_positions - 1)
            inside = (rows < max_positions)[:, None] & (keys >= 0) & (keys < max_positions)
            total += tl.sum(tl.load(start + rows[:, None] * max_positions + keys, mask=inside, other=0.0), 0)
    tl.store(of_distance + head * distances + columns, total, mask=columns < distances)
