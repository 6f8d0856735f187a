"""The ways of attention that attention_gpu.py compares, each from joint queries, keys and values to joined heads."""

import copy

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from fairseq_maelm.modules.attention.triton import operator as attention_triton

OURS = "triton"
# Every shape and way compiles FlexAttention again; past the limit it would silently run uncompiled.
for limit in ("recompile_limit", "cache_size_limit"):
    if hasattr(torch._dynamo.config, limit):
        setattr(torch._dynamo.config, limit, 64)


def plain_bias(table: Tensor, positions: Tensor) -> Tensor:
    """<float>[H, 2 P - 1] and <int64>[B, S] to <float>[B, H, S, S], as the package's plain backend does it."""
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

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, S, d_h)."""
        batch, length, _, heads, head_dim = self.qkv.shape
        return batch, heads, length, head_dim

    def without_bias(self) -> "Problem":
        """Return the same problem with a bias of zero."""
        other = copy.copy(self)
        other.table = torch.zeros_like(self.table).requires_grad_()
        return other

    def exact(self) -> list[Tensor]:
        """Output and gradients of queries, keys and values, and of the table, written out in float64."""
        qkv = self.qkv.detach().double().requires_grad_()
        table = self.table.detach().double().requires_grad_()
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + plain_bias(table, self.positions)
        output = (logits.softmax(dim=-1) @ value).transpose(1, 2)
        return [output.detach(), *torch.autograd.grad(output, (qkv, table), self.gradient.double())]


class Way:
    """One way of attention, from joint queries, keys and values to joined heads, differentiable in ``leaves``.

    All pay for bringing the gradients into the joint tensor, because the layer needs them there.
    """

    biased = True
    drops = True

    def __init__(self, problem: Problem, dropout: float) -> None:
        self.problem, self.dropout = problem, dropout
        self.leaves: list[Tensor] = [problem.qkv, problem.table]
        self.prepare()

    def prepare(self) -> None:
        """Build what a step builds once for all its layers."""

    def attend(self) -> Tensor:
        """<float>[B, S, H, d_h]; our kernels."""
        problem, rest = self.problem, (None, self.dropout, self.problem.seed)
        return attention_triton.relative_attention_qkv(problem.qkv, problem.table, problem.positions, *rest)

    def views(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values <float>[B, H, S, d_h]."""
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
        """Output, gradient of joint queries, keys and values, and where there is a bias that of the table."""
        return self.both()


class Unbiased(Way):
    """torch's own attention without a bias: what the bias is compared with."""

    biased = False

    def prepare(self) -> None:
        self.leaves = [self.problem.qkv]

    def attend(self) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*self.views(), dropout_p=self.dropout).transpose(1, 2)


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
            attend = F.scaled_dot_product_attention
            return attend(*self.views(), attn_mask=self.bias, dropout_p=self.dropout).transpose(1, 2)

    def results(self) -> list[Tensor]:
        output, of_qkv, of_bias = self.both()
        bias = plain_bias(self.problem.table, self.problem.positions)
        return [output, of_qkv, *torch.autograd.grad(bias, self.problem.table, of_bias.to(bias))]


class Flex(Way):
    """FlexAttention that reads the bias from the table of distances; it has no dropout."""

    drops = False

    def prepare(self) -> None:
        table, positions, last = self.problem.table, self.problem.positions.int(), self.problem.max_positions - 1

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + table[h, positions[b, j] - positions[b, i] + last]

            return flex_attention(query, key, value, score_mod=add_bias)

        on_gpu = self.problem.qkv.is_cuda
        self.function = torch.compile(attend, fullgraph=True, dynamic=False) if on_gpu else attend

    def attend(self) -> Tensor:
        return self.function(*self.views()).transpose(1, 2)


WAYS: dict[str, type[Way]] = {
    "sdpa flash, no bias": Unbiased,
    "sdpa memory-efficient, dense bias": DenseBias,
    "flex": Flex,
    OURS: Way,
}
