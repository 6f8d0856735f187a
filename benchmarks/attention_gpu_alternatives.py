"""What attention_gpu.py tries beside the package's kernels: the bias gradient by atomics, Philox for each pair."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_maelm.modules.attention.triton import gradients as attention_triton_gradients
from fairseq_maelm.modules.attention.triton import kernels as attention_triton_kernels
from fairseq_maelm.modules.attention.triton import launch

weights_and_gradient = attention_triton_gradients.weights_and_gradient
kept_by_dropout = attention_triton_kernels.kept_by_dropout
load_rows, load_words = attention_triton_kernels.load_rows, attention_triton_kernels.load_words
place_of_program, store_rows = attention_triton_kernels.place_of_program, attention_triton_kernels.store_rows


@triton.jit
def key_value_gradient_with_atomics(
    query, key, value, table, positions, lengths, words, log_sums, output_gradient, deltas, gradients, pairs,
    stride_batch, stride_head, stride_row, stride_positions, heads, length, max_positions, scale, plain_scale,
    THRESHOLD: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The package's kernel of the same name that also adds to ``pairs`` <float32>[H, P, P], key's position first."""
    batch, head, first, tokens, end = place_of_program(lengths, heads, length, ROWS)
    start = batch * stride_batch + head * stride_head
    by_row = (batch * heads + head) * length
    output_gradient += (batch * length * heads + head) * HEAD_DIM
    table += head * (2 * max_positions - 1) + max_positions - 1
    positions += batch * stride_positions
    pairs += head * max_positions * max_positions
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
        wanted_rows = load_rows(query + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient, columns, heads * HEAD_DIM, inside, HEAD_DIM, BLOCK_D)
        column_positions = tl.load(positions + columns, mask=inside, other=0).to(tl.int32)
        distances = row_positions[:, None] - column_positions[None, :]
        bias = tl.load(table + distances, mask=valid[:, None], other=float("-inf"))
        column_log_sums = tl.load(log_sums + by_row + columns, mask=inside, other=float("inf"))
        column_deltas = tl.load(deltas + by_row + columns, mask=inside, other=0.0)
        column_words = load_words(words + 2 * by_row, columns, inside, THRESHOLD)
        weights, logit_gradient = weights_and_gradient(
            key_rows, wanted_rows, value_rows, gradient_rows, bias, column_log_sums[None, :], column_deltas[None, :],
            row_words[:, None] ^ column_words[None, :], scale, THRESHOLD, PRECISION,
        )  # fmt: skip
        places = pairs + row_positions[:, None] * max_positions + column_positions[None, :]
        tl.atomic_add(places, logit_gradient, mask=valid[:, None] & inside[None, :], sem="relaxed")
        value_gradient = tl.dot(weights.to(key_rows.dtype), gradient_rows, value_gradient, input_precision=PRECISION)
        key_gradient = tl.dot(logit_gradient.to(key_rows.dtype), wanted_rows, key_gradient, input_precision=PRECISION)
    gradients += ((batch * length * 3 + 1) * heads + head) * HEAD_DIM
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, key_gradient * plain_scale, HEAD_DIM, BLOCK_D)
    store_rows(gradients + heads * HEAD_DIM, rows, 3 * heads * HEAD_DIM, length, value_gradient, HEAD_DIM, BLOCK_D)


class AttentionWithAtomics(torch.autograd.Function):
    """The package's forward pass and gradient of queries, with the kernel above for all other gradients."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, table: Tensor, positions: Tensor, dropout: float, seed: Tensor) -> Tensor:
        output, log_sums, words = launch.forward(*qkv.permute(2, 0, 3, 1, 4), table, positions, None, dropout, seed)
        ctx.save_for_backward(qkv, table, positions, output, log_sums, words)
        ctx.dropout = dropout
        return output

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, table, positions, output, log_sums, words = ctx.saved_tensors
        attention = launch._prepare(*qkv.permute(2, 0, 3, 1, 4), table, positions, None, ctx.dropout)
        gradients, deltas = torch.empty_like(qkv), torch.empty_like(log_sums)
        heads, last = table.shape[0], attention.max_positions
        pairs = table.new_zeros(1, heads, last, last)
        scales = (attention.scale * launch.LOG2_E, attention.scale)
        options = attention.options("query gradient")
        attention_triton_gradients.query_gradient_kernel[launch._blocks(attention, options)](
            *attention[:6], words, output, log_sums, output_gradient, deltas, gradients,
            *attention.numbers, *scales, **options,
        )  # fmt: skip
        options = attention.options("key and value gradient")
        key_value_gradient_with_atomics[launch._blocks(attention, options)](
            *attention[:6], words, log_sums, output_gradient, deltas, gradients, pairs,
            *attention.numbers, *scales, **options,
        )  # fmt: skip
        reversed_distances = torch.empty_like(table)
        attention_triton_gradients.diagonal_kernel[(heads * -(-table.shape[1] // 64),)](
            pairs, reversed_distances, 1, heads, last, ROWS=32, DISTANCES=64
        )
        return gradients, reversed_distances.flip(1), None, None, None


# Dropout's decisions alone


@triton.jit
def decisions_kernel(words, seed, counts, length, PER_PAIR: tl.constexpr, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr):
    """Count what dropout keeps in each row <int32>[B, H, S]."""
    blocks = tl.cdiv(length, BLOCK)
    pair = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row_words = load_words(words + 2 * pair * length, rows, rows < length, THRESHOLD)
    kept = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, length, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        if PER_PAIR:
            places = (pair * length + rows)[:, None] * length + columns[None, :]
            keep = tl.randint(seed, places).to(tl.uint32, bitcast=True) >= THRESHOLD
        else:
            column_words = load_words(words + (2 * pair + 1) * length, columns, columns < length, THRESHOLD)
            keep = kept_by_dropout(row_words[:, None] ^ column_words[None, :], THRESHOLD)
        kept += tl.sum((keep & (columns < length)[None, :]).to(tl.int32), 1)
    tl.store(counts + pair * length + rows, kept, mask=rows < length)


def count_kept(qkv: Tensor, table: Tensor, positions: Tensor, seed: Tensor, per_pair: bool) -> Tensor:
    """Take all decisions of a call, by Philox for each pair or as the package does: <int32>[B, H, S] kept in a row."""
    attention = launch._prepare(*qkv.permute(2, 0, 3, 1, 4), table, positions, None, 0.1)
    words = launch.dropout_words(attention, seed)
    batch, heads, _, length = words.shape
    counts = words.new_empty(batch, heads, length)
    grid = (batch * heads * triton.cdiv(length, 64),)
    decisions_kernel[grid](words, 1, counts, length, PER_PAIR=per_pair, THRESHOLD=round(0.1 * 2**32), BLOCK=64)
    return counts
