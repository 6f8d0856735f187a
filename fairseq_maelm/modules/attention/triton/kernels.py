"""Triton kernels of attention with a learned relative bias: dropout, the forward pass, and what all kernels share.

The online softmax of Dao et al. (2022) with the bias read from a table while the logits are in registers:

    logits(b, h, i, j) = query[b, h, i] . key[b, h, j] / sqrt(d_h) + table[h, position(b, j) - position(b, i) + P - 1]

Queries, keys and values share their strides <float>[B, H, S, d_h], the last one being 1. Everything else is contiguous:

    table       <float32>[H, 2 P - 1] the bias in base 2 (times log2 e), so that the exponential is the hardware's
    positions   <int64>[B or 1, S], with stride 0 over the batch when all sequences share them
    lengths     <int64>[B] or None: columns at and after it are padding. Outputs and gradients at padding are zero
    words       <int32>[B, H, 2, S] random words of each column's query and key; not read without dropout
    output      <float>[B, S, H, d_h], as the joined heads are stored
    log_sums    <float32>[B, H, S] logarithm to base 2 of the softmax's denominator; infinity at padding, which turns
                every weight of that row into zero in the kernels that read it
    gradients   <float>[B, S, 3, H, d_h] of queries, keys and values, as one matrix product of the three stores them

Programs are numbered along one axis, blocks of one sequence and head next to each other: they share keys and values
in the cache, and the other axes of a CUDA grid end at 65535.
"""

# Parameters of kernels are pointers and numbers to Triton's compiler; only compile-time constants carry a type.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

MULTIPLIER_1 = tl.constexpr(0x85EBCA6B)
MULTIPLIER_2 = tl.constexpr(0xC2B2AE35)


# A value of length or count that happens to be a multiple of 16 is no reason to compile a second version.
@triton.jit(do_not_specialize=["length", "count"])
def dropout_words_kernel(seed, positions, words, stride_positions, heads, length, count, BLOCK: tl.constexpr):
    """Draw the random words of every query and key, by Philox from (seed, sequence, head, original position)."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    pair = index // length
    column = index % length
    position = tl.load(positions + pair // heads * stride_positions + column, mask=inside, other=0).to(tl.int32)
    zero = position * 0
    of_query, of_key, _, _ = tl.philox(tl.load(seed), position, pair.to(tl.int32), zero, zero)
    place = words + pair * 2 * length + column
    tl.store(place, of_query.to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + length, of_key.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def load_words(words, rows, inside, THRESHOLD: tl.constexpr):
    """Load the random words of rows <uint32>[rows]; without dropout nothing reads them and nothing is loaded."""
    loaded = rows
    if THRESHOLD > 0:
        loaded = tl.load(words + rows, mask=inside, other=0)
    return loaded.to(tl.uint32, bitcast=True)


@triton.jit
def kept_by_dropout(words, THRESHOLD: tl.constexpr):
    """Decide for each pair whether its attention weight is kept; ``words`` is query's word xor key's word.

    Philox for every pair would cost several times the matrix products (some 70 integer operations a pair, in four
    kernels). It is spent on rows and columns instead, and two multiplications mix the two words of a pair: the
    decision depends on (seed, sequence, head, both positions) and on no block size.
    """
    mixed = words * MULTIPLIER_1
    mixed = (mixed ^ (mixed >> 15)) * MULTIPLIER_2
    return mixed >= THRESHOLD


@triton.jit
def load_rows(start, rows, stride_row, present, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load <float>[rows, BLOCK_D]; zeros where a row is not present and beyond the head's width."""
    dims = tl.arange(0, BLOCK_D)
    places = start + rows[:, None] * stride_row + dims[None, :]
    if BLOCK_D == HEAD_DIM:
        block = tl.load(places, mask=present[:, None], other=0.0)
    else:
        block = tl.load(places, mask=present[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    return block


@triton.jit
def store_rows(start, rows, stride_row, length, block, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store <float>[rows, BLOCK_D] in the element type of the destination."""
    dims = tl.arange(0, BLOCK_D)
    places = start + rows[:, None] * stride_row + dims[None, :]
    tl.store(places, block.to(start.dtype.element_ty), mask=(rows < length)[:, None] & (dims < HEAD_DIM)[None, :])


@triton.jit
def place_of_program(lengths, heads, length, ROWS: tl.constexpr):
    """Return sequence, head, first row, tokens of the sequence, and where the loop over the other side ends.

    The loop of a block that lies in the padding ends before it begins.
    """
    blocks = tl.cdiv(length, ROWS)
    pair = tl.program_id(0) // blocks
    # Offsets of sequences pass 2^31 elements in large batches.
    batch = (pair // heads).to(tl.int64)
    first = tl.program_id(0) % blocks * ROWS
    tokens = length
    if lengths is not None:
        tokens = tl.load(lengths + batch).to(tl.int32)
    return batch, pair % heads, first, tokens, tl.where(first < tokens, tokens, 0)


@triton.jit(do_not_specialize=["length"])
def forward_kernel(
    query, key, value, table, positions, lengths, words, output, log_sums,
    stride_batch, stride_head, stride_row, stride_positions, heads, length, max_positions, scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attend from one block of queries to all keys; ``scale`` is log2 e / sqrt(d_h)."""
    batch, head, first, tokens, end = place_of_program(lengths, heads, length, ROWS)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * length
    table += head * (2 * max_positions - 1) + max_positions - 1
    positions += batch * stride_positions
    rows = first + tl.arange(0, ROWS)
    valid = rows < tokens
    query_rows = load_rows(query + start, rows, stride_row, valid, HEAD_DIM, BLOCK_D)
    row_positions = tl.load(positions + rows, mask=valid, other=0).to(tl.int32)
    row_words = load_words(words + 2 * by_row, rows, valid, THRESHOLD)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for begin in range(0, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = columns < tokens
        key_rows = load_rows(key + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        distances = tl.load(positions + columns, mask=inside, other=0).to(tl.int32)[None, :] - row_positions[:, None]
        # The bias of a key in the padding is minus infinity.
        bias = tl.load(table + distances, mask=inside[None, :], other=float("-inf"))
        logits = tl.dot(query_rows, tl.trans(key_rows), input_precision=PRECISION) * scale + bias
        larger = tl.maximum(largest, tl.max(logits, 1))
        weights = tl.exp2(logits - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        if THRESHOLD > 0:
            column_words = load_words(words + 2 * by_row + length, columns, inside, THRESHOLD)
            weights = tl.where(kept_by_dropout(row_words[:, None] ^ column_words[None, :], THRESHOLD), weights, 0.0)
        value_rows = load_rows(value + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        attended = attended * shrink[:, None]
        attended = tl.dot(weights.to(value_rows.dtype), value_rows, attended, input_precision=PRECISION)
        largest = larger
    total = tl.where(valid, total, 1.0)
    attended = attended / (total * (1 - THRESHOLD / 4294967296.0))[:, None]
    output += (batch * length * heads + head) * HEAD_DIM
    attended = tl.where(valid[:, None], attended, 0.0)
    store_rows(output, rows, heads * HEAD_DIM, length, attended, HEAD_DIM, BLOCK_D)
    tl.store(log_sums + by_row + rows, tl.where(valid, largest + tl.log2(total), float("inf")), mask=rows < length)
