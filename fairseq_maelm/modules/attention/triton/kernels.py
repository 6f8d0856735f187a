"""Triton kernels of attention with a learned relative bias: preparation, forward pass, and common functions.

The kernels use the online softmax of Dao et al. (2022), and read the bias from a table while the logits are in
registers:

    logits(b, h, i, j) = query[b, h, i] . key[b, h, j] / sqrt(d_h) + of_distance[h, position(b, j) - position(b, i)]

The inner loops are limited by the number of instructions, not by the tensor cores. Their inputs are therefore prepared
once, by a separate kernel. S' is S rounded up to whole blocks, so that vectors are read with aligned, wide loads and no
mask. Queries, keys and values <float>[B, H, S, d_h] have the same strides, the last one 1. All others are contiguous:

    table       <float32>[H, 4 P + 1] bias of the distances -2 P to 2 P, times log2 e because the hardware's exponential
                has base 2; minus infinity at distances that no two tokens have
    places      <int32>[B, S'] 4 bytes times the position of each column; at padding 4 bytes times 2 P. The table is
                minus infinity at all distances between tokens and position 2 P, which hides padding at no cost
    tokens      <int32>[B] number of columns before the padding. Outputs and gradients at padding are zero
    words       <int32>[B, H, 3, S'] random words of each column: two for its query and one for its key
    output      <float>[B, S, H, d_h], the layout of the joined heads
    log_sums    <float32>[B, H, S'] logarithm to base 2 of the softmax's denominator; infinity at padding, which makes
                every weight of that row zero in the kernels that read it
    gradients   <float>[B, S, 3, H, d_h] of queries, keys and values, the layout of their joint matrix product

REACH is the largest visible distance with a window, and -1 without one. With a window, the table is minus infinity at
larger distances, which hides these pairs. Positions ascend, so columns i and j have |i - j| <= |position i - position
j|, and tiles whose columns are further than REACH from all rows are never visited.

Programs are numbered along one axis, because the other axes of a CUDA grid are limited to 65535. Blocks of the same
sequence and head are adjacent, so that they share keys and values in the cache.
"""

# Triton's compiler takes kernel parameters as pointers or numbers; only compile-time constants carry a type.
# mypy: disable-error-code="no-untyped-def"

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)


@triton.jit
def store_words(start, stride, inside, first, second, third):
    """Store three random words <uint32> for each column; the words of a column are ``stride`` apart."""
    tl.store(start, first.to(tl.int32, bitcast=True), mask=inside)
    tl.store(start + stride, second.to(tl.int32, bitcast=True), mask=inside)
    tl.store(start + 2 * stride, third.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def count_tokens(lengths, batch, length):
    """Return a sequence's number of tokens; without lengths there is no padding."""
    count = length
    if lengths is not None:
        count = tl.load(lengths + batch).to(tl.int32)
    return count


@triton.jit
def clear_positions(inverse, hidden, count, BLOCK: tl.constexpr):
    """Mark all positions of a sequence as having no token."""
    for begin in range(0, count, BLOCK):
        positions = begin + tl.arange(0, BLOCK)
        tl.store(inverse + positions, tl.full([BLOCK], -1, tl.int32), mask=positions < count)
        tl.store(hidden + positions, tl.full([BLOCK], float("-inf"), tl.float32), mask=positions < count)
    tl.debug_barrier()


@triton.jit
def prepare_table(of_distance, table, max_positions, BLOCK: tl.constexpr, REACH: tl.constexpr):
    """Fill the table of a head from its bias at the distances 1 - P to P - 1."""
    for begin in range(0, 4 * max_positions + 1, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        known = (index > max_positions) & (index < 3 * max_positions)
        if REACH >= 0:
            known = known & (index >= 2 * max_positions - REACH) & (index <= 2 * max_positions + REACH)
        bias = tl.load(of_distance + index - max_positions - 1, mask=known, other=float("-inf")) * LOG2_E
        tl.store(table + index, bias, mask=index <= 4 * max_positions)


# Without this, Triton would compile a second version for lengths that are multiples of 16.
@triton.jit(do_not_specialize=["length", "stride_positions"])
def prepare_kernel(
    of_distance, positions, lengths, seed, table, places, tokens, words, inverse, hidden, words_of_positions, extents,
    stride_positions, heads, length, padded, max_positions, padded_positions, BLOCK: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Prepare the inputs of the other kernels, with one program for each sequence and head.

    Random words (32-bit integers for dropout) are Philox numbers of (seed, sequence, head, original position). The
    backward pass also needs

        inverse     <int32>[B, P'] the column at each position, or -1; P' is P rounded up to whole blocks
        hidden      <float32>[B, P'] 0 at positions of tokens, minus infinity elsewhere
        words_of_positions <int32>[B, H, 3, P'] random words of the column at each position; undefined without a column
        extents     <int32>[B] one more than the last position of each sequence

    ``seed`` is None without dropout; ``inverse`` is None if the backward pass does not need it.
    """
    pair = tl.program_id(0).to(tl.int64)
    batch, head = pair // heads, tl.program_id(0) % heads
    count = count_tokens(lengths, batch, length)
    by_position = batch * padded_positions
    if inverse is not None:
        to_clear = tl.where(head == 0, padded_positions, 0)
        clear_positions(inverse + by_position, hidden + by_position, to_clear, BLOCK)
    extent = tl.full([BLOCK], 0, tl.int32)
    for begin in range(0, padded, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < count
        position = tl.load(positions + batch * stride_positions + columns, mask=inside, other=0).to(tl.int32)
        extent = tl.maximum(extent, tl.where(inside, position + 1, 0))
        if head == 0:
            place = tl.where(inside, position, 2 * max_positions) * 4
            tl.store(places + batch * padded + columns, place, mask=columns < padded)
            if inverse is not None:
                tl.store(inverse + by_position + position, columns, mask=inside)
                tl.store(hidden + by_position + position, tl.zeros([BLOCK], tl.float32), mask=inside)
        if seed is not None:
            zero = position * 0
            first, second, third, _ = tl.philox(tl.load(seed), position, pair.to(tl.int32), zero, zero)
            first = first | 1  # With an even multiplier, all numbers of a row would have the same lowest bit.
            store_words(words + pair * 3 * padded + columns, padded, columns < padded, first, second, third)
            if inverse is not None:
                start = words_of_positions + pair * 3 * padded_positions + position
                store_words(start, padded_positions, inside, first, second, third)
    if head == 0:
        tl.store(tokens + batch, count)
        if inverse is not None:
            tl.store(extents + batch, tl.max(extent, 0))
    if batch == 0:
        width = 4 * max_positions + 1
        prepare_table(of_distance + head * (2 * max_positions - 1), table + head * width, max_positions, BLOCK, REACH)


@triton.jit
def bias_at(starts, offsets):
    """Load the biases <float32> at the addresses ``starts`` + ``offsets``, in bytes; offsets must not be negative.

    Triton's own load would convert the addresses to another layout, and the biases back to the layout of the matrix
    product, through shared memory. Inline assembly keeps the layout, with one 32-bit addition and one load.
    """
    if INTERPRETED:
        bias = tl.load(starts + offsets // 4)
    else:
        bias = tl.inline_asm_elementwise(
            "{ .reg .u64 place; cvt.u64.u32 place, $2; add.u64 place, $1, place; ld.global.nc.f32 $0, [place]; }",
            "=f,l,r", [starts.to(tl.int64), offsets], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return bias


@triton.jit
def load_words(words, columns, padded, number: tl.constexpr, THRESHOLD: tl.constexpr):
    """Load the random words of columns <uint32>[columns]; without dropout nothing is loaded."""
    loaded = columns
    if THRESHOLD > 0:
        loaded = tl.load(words + number * padded + columns)
    return loaded.to(tl.uint32, bitcast=True)


@triton.jit
def drop(values, multipliers, keys, offsets, THRESHOLD: tl.constexpr):
    """Replace the values of dropped pairs by zero, in three instructions: multiply-add, comparison, selection.

    A Philox number for every pair would cost several times as much as the matrix products: about 70 integer operations
    in each of four kernels. Instead, each query has a random linear function modulo 2^32, evaluated at the random
    number of each key. The results of different queries are independent; those of the same query are pairwise
    independent. The decision depends only on (seed, sequence, head, both positions), not on block sizes.
    """
    if THRESHOLD == 0:
        left = values
    elif INTERPRETED:
        left = tl.where(multipliers * keys + offsets >= THRESHOLD, values, 0.0)
    else:
        # The compiler would select after the conversion to half precision, separately for each half of a register.
        left = tl.inline_asm_elementwise(
            """{ .reg .u32 number; .reg .pred kept; mad.lo.u32 number, $2, $3, $4; setp.hs.u32 kept, number, $5;
            selp.f32 $0, $1, 0f00000000, kept; }""",
            "=f,f,r,r,r,r", [values, multipliers, keys, offsets, tl.full([1, 1], THRESHOLD, tl.uint32)],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return left


@triton.jit
def load_rows(start, rows, stride_row, present, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load <float>[rows, BLOCK_D], with zeros in absent rows and beyond the head's width."""
    dims = tl.arange(0, BLOCK_D)
    places = start + rows[:, None] * stride_row + dims[None, :]
    if BLOCK_D == HEAD_DIM:
        block = tl.load(places, mask=present[:, None], other=0.0)
    else:
        block = tl.load(places, mask=present[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    return block


@triton.jit
def store_rows(start, rows, stride_row, length, block, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store <float>[rows, BLOCK_D] in the destination's type."""
    dims = tl.arange(0, BLOCK_D)
    places = start + rows[:, None] * stride_row + dims[None, :]
    tl.store(places, block.to(start.dtype.element_ty), mask=(rows < length)[:, None] & (dims < HEAD_DIM)[None, :])


@triton.jit
def place_of_program(tokens, heads, padded, ROWS: tl.constexpr, COLUMNS: tl.constexpr, REACH: tl.constexpr):
    """Return a program's sequence, head, first row, number of tokens, and the bounds of its loop over columns.

    The loop has no iterations if all rows are padding.
    """
    blocks = padded // ROWS
    pair = tl.program_id(0) // blocks
    # Offsets of sequences can exceed 2^31 elements in large batches.
    batch = (pair // heads).to(tl.int64)
    first = tl.program_id(0) % blocks * ROWS
    count = tl.load(tokens + batch)
    begin, end = 0, tl.where(first < count, count, 0)
    if REACH >= 0:
        begin = tl.maximum(first - REACH, 0) // COLUMNS * COLUMNS
        end = tl.minimum(end, first + ROWS + REACH)
    return batch, pair % heads, first, count, begin, end


@triton.jit(do_not_specialize=["length"])
def forward_kernel(
    query, key, value, table, places, tokens, words, output, log_sums,
    stride_batch, stride_head, stride_row, heads, length, padded, max_positions, scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Compute the attention of one block of queries; ``scale`` is log2 e / sqrt(d_h)."""
    batch, head, first, count, start_column, end = place_of_program(tokens, heads, padded, ROWS, COLUMNS, REACH)
    start = batch * stride_batch + head * stride_head
    table += head * (4 * max_positions + 1)
    places += batch * padded
    words += (batch * heads + head) * 3 * padded
    rows = first + tl.arange(0, ROWS)
    valid = rows < count
    query_rows = load_rows(query + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    # Queries at padding use the biases of the first position: a row of minus infinities would give NaN.
    biases = table + 2 * max_positions - tl.where(valid, tl.load(places + rows), 0)[:, None] // 4
    multipliers = load_words(words, rows, padded, 0, THRESHOLD)
    offsets = load_words(words, rows, padded, 1, THRESHOLD)
    # Not minus infinity: a window may hide whole rows of a tile, and infinity minus infinity is NaN.
    largest = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(start_column, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < count
        bias = bias_at(biases, tl.load(places + columns)[None, :])
        key_rows = load_rows(key + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        logits = tl.dot(query_rows, tl.trans(key_rows), input_precision=PRECISION) * scale + bias
        larger = tl.maximum(largest, tl.max(logits, 1))
        weights = tl.exp2(logits - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        if THRESHOLD > 0:
            keys = load_words(words, columns, padded, 2, THRESHOLD)
            weights = drop(weights, multipliers[:, None], keys[None, :], offsets[:, None], THRESHOLD)
        value_rows = load_rows(value + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        attended = attended * shrink[:, None]
        attended = tl.dot(weights.to(value_rows.dtype), value_rows, attended, input_precision=PRECISION)
        largest = larger
    total = tl.where(valid, total, 1.0)
    attended = attended / (total * (1 - THRESHOLD / 4294967296.0))[:, None]
    output += (batch * length * heads + head) * HEAD_DIM
    attended = tl.where(valid[:, None], attended, 0.0)
    store_rows(output, rows, heads * HEAD_DIM, length, attended, HEAD_DIM, BLOCK_D)
    log_sums += (batch * heads + head) * padded
    tl.store(log_sums + rows, tl.where(valid, largest + tl.log2(total), float("inf")))
