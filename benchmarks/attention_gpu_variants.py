"""The ways of attention that attention_gpu.py compares, each from packed queries, keys and values to joined heads."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from fairseq_maelm.modules import attention_triton, attention_triton_gradients, attention_triton_kernels
from fairseq_maelm.modules import attention_triton_launch as launch

weights_and_gradient = attention_triton_gradients.weights_and_gradient
kept_by_dropout = attention_triton_kernels.kept_by_dropout
load_rows, load_words = attention_triton_kernels.load_rows, attention_triton_kernels.load_words
place_of_program, store_rows = attention_triton_kernels.place_of_program, attention_triton_kernels.store_rows

# Every shape and way compiles FlexAttention again; past the limit it would silently run uncompiled.
for limit in ("recompile_limit", "cache_size_limit"):
    if hasattr(torch._dynamo.config, limit):
        setattr(torch._dynamo.config, limit, 64)


def plain_bias(table: Tensor, positions: Tensor) -> Tensor:
    """<float>[H, 2 P - 1] and <int64>[B, S] to <float>[B, H, S, S], as the package's plain path does it."""
    batch, length = positions.shape
    distances = positions[:, None, :] - positions[:, :, None] + table.shape[1] // 2
    return table.index_select(1, distances.view(-1)).view(-1, batch, length, length).transpose(0, 1)


class Problem:
    """Random inputs: B sequences of S tokens at positions drawn from P, and the gradient of the output."""

    def __init__(
        self, batch: int, length: int, heads: int, head_dim: int, positions: int, dtype: torch.dtype, device: str
    ) -> None:
        self.max_positions = positions
        order = torch.rand(batch, positions, device=device).argsort(dim=1)
        self.positions = order[:, :length].sort(dim=1).values
        self.qkv = torch.randn(batch, length, 3, heads, head_dim, device=device, dtype=dtype).requires_grad_()
        self.table = torch.randn(heads, 2 * positions - 1, device=device).requires_grad_()
        self.gradient = torch.randn(batch, length, heads, head_dim, device=device, dtype=dtype)
        self.seed = torch.tensor([1], device=device)

    def without_bias(self) -> "Problem":
        """The same with a bias of zero."""
        other = copy.copy(self)
        other.table = torch.zeros_like(self.table).requires_grad_()
        return other

    def build_dense_bias(self) -> None:
        """What a dense bias costs once a step: from the table, and its gradient back."""
        bias = plain_bias(self.table, self.positions).to(self.qkv.dtype)
        torch.autograd.grad(bias, self.table, bias.detach())


class Way:
    """One way of attention: ``attend`` is differentiable in ``leaves``, packed queries, keys and values first.

    All pay for bringing the gradients into the packed tensor, because the layer needs them there.
    """

    biased = True
    drops = True

    def __init__(self, problem: Problem, dropout: float) -> None:
        self.problem = problem
        self.dropout = dropout
        self.leaves: list[Tensor] = [problem.qkv, problem.table]
        self.prepare()

    def prepare(self) -> None:
        """Build what a step builds once for all its layers."""

    def attend(self) -> Tensor:
        """<float>[B, S, H, d_h]."""
        raise NotImplementedError

    def views(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values <float>[B, H, S, d_h]."""
        query, key, value = self.problem.qkv.permute(2, 0, 3, 1, 4)
        return query, key, value

    def forward(self) -> None:
        """Only forward."""
        with torch.no_grad():
            self.attend()

    def both(self) -> list[Tensor]:
        """Forward and backward: output and gradients of the leaves."""
        output = self.attend()
        return [output.detach(), *torch.autograd.grad(output, self.leaves, self.problem.gradient)]

    def results(self) -> list[Tensor]:
        """Output, gradient of packed queries, keys and values, and where there is a bias that of the table."""
        return self.both()


class Unbiased(Way):
    """torch's own attention without a bias: what the bias is compared with."""

    biased = False
    backend = SDPBackend.FLASH_ATTENTION

    def prepare(self) -> None:
        self.leaves = [self.problem.qkv]

    def attend(self) -> Tensor:
        with sdpa_kernel(self.backend):
            return F.scaled_dot_product_attention(*self.views(), dropout_p=self.dropout).transpose(1, 2)


class UnbiasedCudnn(Unbiased):
    """The same by cuDNN."""

    backend = SDPBackend.CUDNN_ATTENTION


class DenseBias(Way):
    """torch's memory-efficient attention with a dense bias [B, H, S, S], rows padded to 16 elements."""

    def prepare(self) -> None:
        with torch.no_grad():
            bias = plain_bias(self.problem.table, self.problem.positions).to(self.problem.qkv.dtype)
        length = bias.shape[-1]
        self.bias = F.pad(bias, (0, -length % 16))[..., :length].requires_grad_()
        self.leaves = [self.problem.qkv, self.bias]

    def attend(self) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(*self.views(), attn_mask=self.bias, dropout_p=self.dropout).transpose(
                1, 2
            )

    def results(self) -> list[Tensor]:
        output, of_qkv, of_bias = self.both()
        bias = plain_bias(self.problem.table, self.problem.positions)
        return [output, of_qkv, *torch.autograd.grad(bias, self.problem.table, of_bias.to(bias))]


class FlexTable(Way):
    """FlexAttention that reads the bias from the table of distances; it has no dropout."""

    drops = False

    def score(self) -> Callable[..., Tensor]:
        """The function that adds the bias."""
        table, positions, last = self.problem.table, self.problem.positions.int(), self.problem.max_positions - 1
        return lambda score, b, h, i, j: score + table[h, positions[b, j] - positions[b, i] + last]

    def prepare(self) -> None:
        score = self.score()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return flex_attention(query, key, value, score_mod=score)

        on_gpu = self.problem.qkv.is_cuda
        self.function = torch.compile(attend, fullgraph=True, dynamic=False) if on_gpu else attend

    def attend(self) -> Tensor:
        return self.function(*self.views()).transpose(1, 2)


class FlexDense(FlexTable):
    """FlexAttention that reads the bias from a dense [H, P, P]."""

    def score(self) -> Callable[..., Tensor]:
        every = torch.arange(self.problem.max_positions, device=self.problem.qkv.device)[None]
        dense = plain_bias(self.problem.table, every)[0]
        self.source = dense
        dense = dense.detach().requires_grad_()
        self.leaves = [self.problem.qkv, dense]
        positions = self.problem.positions.int()
        return lambda score, b, h, i, j: score + dense[h, positions[b, i], positions[b, j]]

    def results(self) -> list[Tensor]:
        output, of_qkv, of_dense = self.both()
        return [output, of_qkv, *torch.autograd.grad(self.source, self.problem.table, of_dense)]


class Ours(Way):
    """This package's kernels."""

    def attend(self) -> Tensor:
        problem = self.problem
        return attention_triton.relative_attention_packed(
            problem.qkv, problem.table, problem.positions, None, self.dropout, problem.seed
        )


class OursSeparate(Way):
    """The same through the door for separate queries, keys and values: their gradients are copied together."""

    def attend(self) -> Tensor:
        problem = self.problem
        return attention_triton.relative_attention(
            *self.views(), problem.table, problem.positions, None, self.dropout, problem.seed
        ).transpose(1, 2)


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
        query_rows = load_rows(query + start, columns, stride_row, inside, HEAD_DIM, BLOCK_D)
        gradient_rows = load_rows(output_gradient, columns, heads * HEAD_DIM, inside, HEAD_DIM, BLOCK_D)
        column_positions = tl.load(positions + columns, mask=inside, other=0).to(tl.int32)
        distances = row_positions[:, None] - column_positions[None, :]
        bias = tl.load(table + distances, mask=valid[:, None], other=float("-inf"))
        column_log_sums = tl.load(log_sums + by_row + columns, mask=inside, other=float("inf"))
        column_deltas = tl.load(deltas + by_row + columns, mask=inside, other=0.0)
        column_words = load_words(words + 2 * by_row, columns, inside, THRESHOLD)
        weights, logit_gradient = weights_and_gradient(
            key_rows, query_rows, value_rows, gradient_rows, bias, column_log_sums[None, :], column_deltas[None, :],
            row_words[:, None] ^ column_words[None, :], scale, THRESHOLD, PRECISION,
        )  # fmt: skip
        places = pairs + row_positions[:, None] * max_positions + column_positions[None, :]
        tl.atomic_add(places, logit_gradient, mask=valid[:, None] & inside[None, :], sem="relaxed")
        value_gradient = tl.dot(weights.to(key_rows.dtype), gradient_rows, value_gradient, input_precision=PRECISION)
        key_gradient = tl.dot(logit_gradient.to(key_rows.dtype), query_rows, key_gradient, input_precision=PRECISION)
    gradients += ((batch * length * 3 + 1) * heads + head) * HEAD_DIM
    store_rows(gradients, rows, 3 * heads * HEAD_DIM, length, key_gradient * plain_scale, HEAD_DIM, BLOCK_D)
    store_rows(gradients + heads * HEAD_DIM, rows, 3 * heads * HEAD_DIM, length, value_gradient, HEAD_DIM, BLOCK_D)


class _Atomics(torch.autograd.Function):
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


class OursWithAtomics(Way):
    """This package's kernels, the gradient of the bias by atomic additions to [H, P, P]."""

    def attend(self) -> Tensor:
        problem = self.problem
        return _Atomics.apply(problem.qkv, problem.table, problem.positions, self.dropout, problem.seed)


VARIANTS: dict[str, type[Way]] = {
    "sdpa flash, no bias": Unbiased,
    "sdpa cudnn, no bias": UnbiasedCudnn,
    "sdpa memory-efficient, dense bias": DenseBias,
    "flex, table": FlexTable,
    "flex, dense [H, P, P]": FlexDense,
    "triton": Ours,
    "triton, separate q k v": OursSeparate,
    "triton, atomic additions": OursWithAtomics,
}


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


def _decide(problem: Problem, per_pair: bool) -> Tensor:
    views = problem.qkv.detach().permute(2, 0, 3, 1, 4)
    attention = launch._prepare(*views, problem.table.detach(), problem.positions, None, 0.1)
    words = launch.dropout_words(attention, problem.seed)
    batch, heads, _, length = words.shape
    counts = words.new_empty(batch, heads, length)
    grid = (batch * heads * triton.cdiv(length, 64),)
    decisions_kernel[grid](words, 1, counts, length, PER_PAIR=per_pair, THRESHOLD=round(0.1 * 2**32), BLOCK=64)
    return counts


def decisions_per_row(problem: Problem) -> Tensor:
    """All decisions of a call as the package takes them; <int32>[B, H, S] kept in each row."""
    return _decide(problem, per_pair=False)


def decisions_per_pair(problem: Problem) -> Tensor:
    """All decisions of a call by Philox for each pair; <int32>[B, H, S] kept in each row."""
    return _decide(problem, per_pair=True)
