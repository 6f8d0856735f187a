"""Triton kernels of attention with a learned relative bias: the backward pass.

Names and layouts are those of ``kernels``. With G the gradient of the output, the gradient of the weights is G value^T,
or zero where dropout removed a weight. The gradient of a logit is weight * (gradient of the weight - delta), where
delta = sum over the row of weight * gradient of the weight = output . G (Dao et al., 2022, appendix B.4). Dropout with
probability p multiplies kept weights by 1 / (1 - p); the kernels do so at the end, and use (1 - p) delta until then.

    deltas      <float32>[B, H, S'] delta times 1 - p
    words       as in ``kernels``; for the pair gradient <int32>[B, H, 3, P'], indexed by position
    visits      <int32>[blocks of positions, B + 1] for each block, the number of sequences with a token at or after the
                block's first position, then the indices of these sequences
    pairs       <float32>[parts, H, P, P] sum of the logits' gradients over a part of the batch, by (query position, key
                position)
"""

# Triton's compiler takes kernel parameters as pointers or numbers; only compile-time constants carry a type.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from .kernels import bias_at, drop, load_rows, load_words, place_of_program, store_rows


@triton.jit
def recompute(left, right, left_value, right_value, bias, scale, PRECISION: tl.constexpr):
    """Recompute a block of attention weights <float32>[left, right] and their gradient without dropout.

    (left, right) is (queries, keys), and (left_value, right_value) is (gradient of the output, values); or both pairs
    are swapped. The log sums are already subtracted from the bias.
    """
    weights = tl.exp2(tl.dot(left, tl.trans(right), input_precision=PRECISION) * scale + bias)
    return weights, tl.dot(left_value, tl.trans(right_value), input_precision=PRECISION)


@triton.jit(do_not_specialize=["length"])
def query_gradient_kernel(
    query, key, value, table, places, tokens, words, output, log_sums, output_gradient, deltas, gradients,
    stride_batch, stride_head, stride_row, heads, length, padded, max_positions, scale, plain_scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one block of queries, and the deltas, which the other kernels read."""
    batch, head, first, count, start_column, end = place_of_program(tokens, heads, padded, ROWS, COLUMNS, REACH)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * padded
    joined = (batch * length * heads + head) * HEAD_DIM
    table += head * (4 * max_positions + 1)
    places += batch * padded
    words += 3 * by_row
    rows = first + tl.arange(0, ROWS)
    valid = rows < count
    query_rows = load_rows(query + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    gradient_rows = load_rows(output_gradient + joined, rows, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
    padded_outputs = load_rows(output + joined, rows, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
    row_deltas = tl.sum(padded_outputs.to(tl.float32) * gradient_rows.to(tl.float32), 1)
    row_deltas *= 1 - THRESHOLD / 4294967296.0
    tl.store(deltas + by_row + rows, row_deltas)
    row_log_sums = tl.load(log_sums + by_row + rows)
    biases = table + 2 * max_positions - tl.load(places + rows)[:, None] // 4
    multipliers = load_words(words, rows, padded, 0, THRESHOLD)
    offsets = load_words(words, rows, padded, 1, THRESHOLD)
    query_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(start_column, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < count
        bias = bias_at(biases, tl.load(places + columns)[None, :])
        key_rows = load_rows(key + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        value_rows = load_rows(value + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        bias -= row_log_sums[:, None]
        weights, gradient = recompute(query_rows, key_rows, gradient_rows, value_rows, bias, scale, PRECISION)
        # Loaded as late as possible, here and below, because registers are scarce.
        keys = load_words(words, columns, padded, 2, THRESHOLD)
        gradient = drop(gradient, multipliers[:, None], keys[None, :], offsets[:, None], THRESHOLD)
        logit_gradient = weights * (gradient - row_deltas[:, None])
        query_gradient = tl.dot(logit_gradient.to(key_rows.dtype), key_rows, query_gradient, input_precision=PRECISION)
    gradients += (batch * length * 3 * heads + head) * HEAD_DIM
    query_gradient *= plain_scale
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, query_gradient, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=["length"])
def key_value_gradient_kernel(
    query, key, value, table, places, tokens, words, log_sums, output_gradient, deltas, gradients,
    stride_batch, stride_head, stride_row, heads, length, padded, max_positions, scale, plain_scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one block of keys and values; rows are keys, columns queries."""
    batch, head, first, count, start_column, end = place_of_program(tokens, heads, padded, ROWS, COLUMNS, REACH)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * padded
    output_gradient += (batch * length * heads + head) * HEAD_DIM
    table += head * (4 * max_positions + 1)
    places += batch * padded
    words += 3 * by_row
    rows = first + tl.arange(0, ROWS)
    valid = rows < count
    key_rows = load_rows(key + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    value_rows = load_rows(value + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    biases = table + tl.load(places + rows)[:, None] // 4
    keys = load_words(words, rows, padded, 2, THRESHOLD)
    key_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    value_gradient = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(start_column, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < count
        bias = bias_at(biases, 8 * max_positions - tl.load(places + columns)[None, :])
        bias -= tl.load(log_sums + by_row + columns)[None, :]
        query_rows = load_rows(query + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient, columns, heads * HEAD_DIM, inside, HEAD_DIM, BLOCK_D)
        weights, gradient = recompute(key_rows, query_rows, value_rows, gradient_rows, bias, scale, PRECISION)
        multipliers = load_words(words, columns, padded, 0, THRESHOLD)[None, :]
        offsets = load_words(words, columns, padded, 1, THRESHOLD)[None, :]
        left = drop(weights, multipliers, keys[:, None], offsets, THRESHOLD).to(gradient_rows.dtype)
        value_gradient = tl.dot(left, gradient_rows, value_gradient, input_precision=PRECISION)
        gradient = drop(gradient, multipliers, keys[:, None], offsets, THRESHOLD)
        logit_gradient = weights * (gradient - tl.load(deltas + by_row + columns)[None, :])
        key_gradient = tl.dot(logit_gradient.to(query_rows.dtype), query_rows, key_gradient, input_precision=PRECISION)
    gradients += ((batch * length * 3 + 1) * heads + head) * HEAD_DIM
    key_gradient *= plain_scale
    value_gradient /= 1 - THRESHOLD / 4294967296.0
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, key_gradient, HEAD_DIM, BLOCK_D)
    store_rows(gradients + heads * HEAD_DIM, rows, 3 * heads * HEAD_DIM, length, value_gradient, HEAD_DIM, BLOCK_D)


@triton.jit(do_not_specialize=["batches"])
def visits_kernel(extents, visits, batches, POSITIONS: tl.constexpr, BLOCK: tl.constexpr):
    """List the sequences that reach one block of positions."""
    visits += tl.program_id(0) * (batches + 1)
    count = 0
    for begin in range(0, batches, BLOCK):
        sequences = begin + tl.arange(0, BLOCK)
        extent = tl.load(extents + sequences, mask=sequences < batches, other=0)
        reaches = (extent > tl.program_id(0) * POSITIONS).to(tl.int32)
        tl.store(visits + count + tl.cumsum(reaches, 0), sequences, mask=reaches > 0)
        count += tl.sum(reaches, 0)
    tl.store(visits, count)


@triton.jit(do_not_specialize=["batches", "length"])
def pair_gradient_kernel(
    query, key, value, table, inverse, hidden, visits, words, log_sums, output_gradient, deltas, pairs,
    stride_batch, stride_head, stride_row, batches, heads, length, padded, max_positions, padded_positions, scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, REACH: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Sum logit gradients over part of the batch, for one block of (query position, key position).

    One program computes each block. The sum stays in registers, needs no atomic additions and is deterministic.
    """
    row_blocks = tl.cdiv(max_positions, ROWS)
    blocks = row_blocks * tl.cdiv(max_positions, COLUMNS)
    part, head = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    parts = tl.num_programs(0) // blocks // heads
    first_row, first_column = tl.program_id(0) % row_blocks * ROWS, tl.program_id(0) % blocks // row_blocks * COLUMNS
    rows, columns = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    distances = tl.maximum(tl.minimum(columns[None, :] - rows[:, None], max_positions), -max_positions)
    bias = tl.load(table + head * (4 * max_positions + 1) + 2 * max_positions + distances)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    visits += tl.maximum(first_row, first_column) // POSITIONS * (batches + 1)
    count = tl.load(visits)
    if REACH >= 0:
        nearest = tl.maximum(first_row - first_column - COLUMNS, first_column - first_row - ROWS) + 1
        count = tl.where(nearest > REACH, 0, count)
    for visit in range(part, count, parts):
        batch = tl.load(visits + 1 + visit).to(tl.int64)
        row_index = tl.load(inverse + batch * padded_positions + rows)
        column_index = tl.load(inverse + batch * padded_positions + columns)
        valid, inside = row_index >= 0, column_index >= 0
        start = batch * stride_batch + head * stride_head
        by_row = (batch * heads + head) * padded
        joined = (batch * length * heads + head) * HEAD_DIM
        query_rows = load_rows(query + start, row_index, stride_row, valid, HEAD_DIM, BLOCK_D)
        key_rows = load_rows(key + start, column_index, stride_row, inside, HEAD_DIM, BLOCK_D)
        value_rows = load_rows(value + start, column_index, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient + joined, row_index, heads * HEAD_DIM, valid, HEAD_DIM, BLOCK_D)
        row_log_sums = tl.load(log_sums + by_row + row_index, mask=valid, other=float("inf"))
        row_deltas = tl.load(deltas + by_row + row_index, mask=valid, other=0.0)
        bias_and_sums = bias - row_log_sums[:, None] + tl.load(hidden + batch * padded_positions + columns)[None, :]
        weights, gradient = recompute(query_rows, key_rows, gradient_rows, value_rows, bias_and_sums, scale, PRECISION)
        by_position = (batch * heads + head) * 3 * padded_positions
        multipliers = load_words(words + by_position, rows, padded_positions, 0, THRESHOLD)
        offsets = load_words(words + by_position, rows, padded_positions, 1, THRESHOLD)
        keys = load_words(words + by_position, columns, padded_positions, 2, THRESHOLD)
        gradient = drop(gradient, multipliers[:, None], keys[None, :], offsets[:, None], THRESHOLD)
        total += weights * (gradient - row_deltas[:, None])
    total /= 1 - THRESHOLD / 4294967296.0
    pairs += tl.cast(part * heads + head, tl.int64) * max_positions * max_positions
    destination = pairs + rows[:, None] * max_positions + columns[None, :]
    tl.store(destination, total, mask=(rows < max_positions)[:, None] & (columns < max_positions)[None, :])


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
