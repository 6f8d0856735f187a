"""Local attention in blocks equals attention with a dense mask of the window, in outputs and all gradients."""

import pytest
import torch
from attention_problem import context_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.context import plain_attention
from fairseq_maelm.modules.attention.local import attend_local, block_size
from fairseq_maelm.modules.attention.triton import operator as triton


class LocalProblem:
    """Random local attention over two layers that share a bias; positions ascend with gaps, as visible tokens do."""

    def __init__(self, batch, heads, length, window, relative, padded, seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        span = 2 * length

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

        self.window = window
        self.layers = [[draw(batch, heads, length, 4) for _ in range(3)] for _ in range(2)]
        self.weights = draw(batch, heads, length, 4).detach()
        self.table = draw(heads, 2 * span - 1) if relative else None
        chosen = [torch.randperm(span, generator=generator)[:length].sort().values for _ in range(batch)]
        self.positions = torch.stack(chosen)
        self.lengths = torch.randint(0, length + 1, (batch,), generator=generator) if padded else None
        lengths = self.lengths if padded else torch.full((batch,), length)
        self.inside = torch.arange(length) < lengths[:, None]

    def bias(self):
        return context_of(self.table, self.positions, self.lengths, max_positions=2 * self.positions.shape[1])

    def results(self, attend):
        """Return outputs at tokens and the gradients of all inputs."""
        bias = self.bias()
        outputs = [attend(*parts, bias) * self.inside[:, None, :, None] for parts in self.layers]
        loss = sum(((number + 1) * output * self.weights).sum() for number, output in enumerate(outputs))
        leaves = [leaf for parts in self.layers for leaf in parts] + ([] if self.table is None else [self.table])
        return [output.detach() for output in outputs] + list(torch.autograd.grad(loss, leaves))

    def by(self, backend):
        """By a backend as the layers call it: in blocks, or in the kernels' tiles."""

        def attend(query, key, value, bias):
            way = BACKENDS[backend].local(query, bias, 0.0)
            return attend_local(BACKENDS[backend].attend, query, key, value, bias, self.window, 0.0, way)

        return self.results(attend)

    def written_out(self):
        """The formula with every pair, for padding too: a token reads itself, so no row is without keys."""

        def attend(query, key, value, bias):
            distances = self.positions[:, :, None] - self.positions[:, None, :]
            hidden = (distances.abs() > self.window // 2) | ~self.inside[:, None, :]
            hidden &= ~torch.eye(hidden.shape[1], dtype=torch.bool)
            logits = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
            if self.table is not None:
                logits = logits + context_of(self.table, self.positions).dense(key)
            return logits.masked_fill(hidden[:, None], float("-inf")).softmax(-1) @ value

        return self.results(attend)


problems = st.builds(
    LocalProblem,
    batch=st.integers(1, 3),
    heads=st.integers(1, 2),
    length=st.integers(1, 130),
    window=st.integers(1, 50),
    relative=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 1000),
)


@settings(max_examples=40)
@given(problem=problems, backend=st.sampled_from([name for name in BACKENDS if name != "triton"]))
def test_blocks_equal_the_formula(problem, backend):
    for fast, exact in zip(problem.by(backend), problem.written_out(), strict=True):
        torch.testing.assert_close(fast, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("length", "dtype", "dropout", "whole"),
    [
        (80, torch.float32, 0.0, True),
        (81, torch.float32, 0.0, False),
        (128, torch.bfloat16, 0.0, True),
        (129, torch.bfloat16, 0.0, False),
        (81, torch.bfloat16, 0.1, False),
    ],
    ids=str,
)
def test_short_sequences_are_computed_whole(length, dtype, dropout, whole):
    """In half precision without dropout up to 8 blocks, here of 16, else up to 5."""
    problem = LocalProblem(2, 2, length, 20, relative=False, padded=False, dtype=dtype)
    lengths = []

    def attend(query, key, value, bias, probability):
        assert probability == dropout
        lengths.append(query.shape[2])
        return plain_attention(query, key, value, bias, 0.0)

    def by_blocks(query, key, value, bias):
        return attend_local(attend, query, key, value, bias, problem.window, dropout)

    found = problem.results(by_blocks)
    assert set(lengths) == {length if whole else block_size(problem.window)}
    error = 1e-5 if dtype is torch.float32 else 0.05
    for ours, exact in zip(found, problem.written_out(), strict=True):
        torch.testing.assert_close(ours, exact, rtol=error, atol=error)


@pytest.mark.parametrize("relative", [True, False])
def test_triton_skips_tiles_and_equals_the_formula(relative, monkeypatch):
    pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")
    if torch.cuda.is_available():
        pytest.skip("runs in Triton's interpreter")
    problem = LocalProblem(2, 1, 50, 9, relative, padded=True, dtype=torch.float32)
    shapes, kernels = [], triton.relative_attention

    def recorded(query, *others):
        shapes.append(tuple(query.shape))
        return kernels(query, *others)

    monkeypatch.setattr(triton, "relative_attention", recorded)
    fast = problem.by("triton")
    assert shapes == [(2, 1, 50, 4)] * 2, "whole sequences, not blocks"
    for ours, exact in zip(fast, problem.written_out(), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


def test_no_tensor_has_a_row_and_a_column_for_each_token():
    length, window = 1024, 32
    largest = []

    def attend(query, key, value, bias, dropout):
        largest.append(bias.dense(key).numel())
        return plain_attention(query, key, value, bias, dropout)

    parts = (torch.randn(1, 1, length, 4) for _ in range(3))
    attend_local(attend, *parts, context_of(positions=torch.arange(length)[None]), window, 0.0)
    assert largest == [length * 3 * block_size(window)]
