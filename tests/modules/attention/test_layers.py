"""Every way of computing attention equals the written-out one in outputs and all gradients, dropout included."""

import pytest
import torch
from attention_problem import Problem, attend, context_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fairseq_maelm.modules.attention import cpu
from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.layers import CrossAttention, LayerConfig, SelfAttention, memories
from fairseq_maelm.modules.attention.streams import split_packed

# Every way but the plain one, with which it is compared, and those of other devices.
HERE = [name for name, backend in BACKENDS.items() if backend.device in (None, "cpu") and name != "plain"]


problems = st.builds(
    lambda extra, length, **numbers: Problem(length=length, span=length + extra, **numbers),
    batch=st.integers(1, 4),
    heads=st.integers(1, 3),
    length=st.integers(1, 40),
    width=st.integers(1, 9),
    extra=st.integers(0, 30),
    shared=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 1000),
)


@settings(max_examples=40)
@given(problem=problems, backend=st.sampled_from(HERE))
def test_every_backend_equals_the_plain_one(problem, backend):
    for fast, plain in zip(problem.results(backend), problem.results("plain"), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("length", [1, 11, cpu.SHORT, cpu.SHORT + 1])
def test_without_gradients_short_sequences_are_computed_by_themselves(length, padded, monkeypatch):
    numbers = {"batch": 9, "heads": 2, "length": length, "width": 8, "span": 40, "shared": False, "padded": padded}
    calls = []
    attend_short = cpu.attend_short
    monkeypatch.setattr(cpu, "attend_short", lambda *given: calls.append(1) or attend_short(*given))
    for dtype, error in ((torch.float64, 1e-10), (torch.bfloat16, 0.1)):
        exact, fast = Problem(**numbers).outputs("plain"), Problem(**numbers, dtype=dtype).outputs("auto")
        for mine, expected in zip(fast, exact, strict=True):
            assert mine.dtype == dtype
            assert (mine.double() - expected).abs().max() <= error
    assert len(calls) == (4 if length <= cpu.SHORT else 0)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [*((name, torch.float32) for name in HERE), ("cpu", torch.bfloat16), ("cpu", torch.float16)],
    ids=str,
)
@pytest.mark.parametrize("shared", [True, False])
def test_errs_no_more_than_the_plain_backend(backend, dtype, shared):
    """At a real head width and a length that no vector register divides."""
    numbers = {"batch": 2, "heads": 2, "length": 131, "width": 64, "span": 150, "shared": shared, "padded": True}
    rounded, exact = Problem(**numbers, dtype=dtype), Problem(**numbers)
    for mine, theirs in zip(exact.leaves, rounded.leaves):
        mine.data = theirs.data.double()
    exact.weights = rounded.weights.double()
    margin = min(1e-3, 80 * torch.finfo(dtype).eps)
    expected = exact.results("plain")
    for fast, plain, reference in zip(rounded.results(backend), rounded.results("plain"), expected, strict=True):
        assert fast.dtype == dtype
        error, allowed = ((each.double() - reference).norm() for each in (fast, plain))
        assert error <= 1.1 * allowed + margin * reference.norm()


# Sharing one bias between layers


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_groups_of_sequences_and_heads_change_nothing(dropout, dtype, monkeypatch):
    results, of_head = [], 16 * 16
    for weights in (1, of_head, 2 * of_head, 4 * of_head, 10 * of_head):
        for name in ("_WEIGHTS_TOGETHER", "_HALF_WEIGHTS_TOGETHER", "_SEQUENCE_WEIGHTS"):
            monkeypatch.setattr(cpu, name, weights)
        problem = Problem(5, 2, 16, 8, 20, shared=False, padded=True, dtype=dtype)
        torch.manual_seed(1)
        results.append(problem.results("cpu", dropout))
    error = max(1e-5, 4 * torch.finfo(dtype).eps)
    for others in zip(*results, strict=True):
        for other in others[1:]:
            torch.testing.assert_close(other, others[0], rtol=error, atol=error)


def test_passes_do_not_mix():
    """The sum over layers belongs to one backward pass, also when that asks for other gradients."""
    problem = Problem(2, 2, 9, 4, 12, shared=False, padded=True)
    outputs = problem.outputs("cpu")
    loss = sum((output * problem.weights).sum() for output in outputs)
    (expected,) = torch.autograd.grad(loss, problem.table, retain_graph=True)
    assert expected.any()
    torch.autograd.grad(outputs[0].sum(), problem.qkv[0], retain_graph=True)
    (again,) = torch.autograd.grad(loss, problem.table, retain_graph=True)
    assert torch.equal(again, expected)
    (doubled,) = torch.autograd.grad(2 * loss, problem.table)
    torch.testing.assert_close(doubled, 2 * expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputation_changes_nothing(dropout):
    """Activation checkpointing: the same random numbers, and the gradient of the bias counted once."""
    problem = Problem(2, 2, 9, 4, 12, shared=False, padded=True)

    def recomputed(*arguments):
        return checkpoint(attend, *arguments, use_reentrant=False)

    results = []
    for attention in (attend, recomputed):
        torch.manual_seed(1)
        results.append(problem.results("cpu", dropout, attention))
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def test_frozen_table_and_no_gradient():
    problem = Problem(2, 2, 9, 4, 12, shared=True, padded=True)
    expected = problem.results("plain")
    with torch.no_grad():
        for output, plain in zip(problem.outputs("auto"), expected):
            torch.testing.assert_close(output, plain)
    problem.table.requires_grad_(False)
    gradients = torch.autograd.grad(sum((o * problem.weights).sum() for o in problem.outputs("cpu")), problem.qkv[0])
    torch.testing.assert_close(gradients[0], expected[2])


# What hides keys


@pytest.mark.parametrize("backend", [*HERE, "plain"])
def test_hidden_keys_have_no_influence(backend):
    torch.manual_seed(0)
    query, key, value = (torch.randn(3, 2, 9, 8, dtype=torch.float64) for _ in range(3))
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1, 6:] = True
    with_padding = attend(query, key, value, context_of(hidden=padding), 0.0, backend)
    torch.testing.assert_close(
        attend(query, key, value, context_of(lengths=torch.tensor([9, 6, 9])), 0.0, backend), with_padding
    )
    value[1, :, 6:] += 100
    key[1, :, 6:] -= 5
    torch.testing.assert_close(attend(query, key, value, context_of(hidden=padding), 0.0, backend), with_padding)
    shorter = attend(query[1:2, :, :6], key[1:2, :, :6], value[1:2, :, :6], context_of(), 0.0, backend)
    torch.testing.assert_close(with_padding[1:2, :, :6], shorter)


@pytest.mark.parametrize("backend", [*HERE, "plain"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nothing_to_read_gives_zeros(backend, dropout):
    tensors = [torch.randn(2, 2, 5, 4, requires_grad=True) for _ in range(3)]
    hidden = torch.tensor([[True] * 5, [False, True, False, False, True]])
    output = attend(*tensors, context_of(hidden=hidden), dropout, backend)
    assert not output[0].any() and output[1].any()
    for gradient in torch.autograd.grad(output.square().sum(), tensors):
        assert not gradient[0].any() and gradient[1].isfinite().all()


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("queries", [1, 4, 11])
def test_fewer_or_more_queries_than_keys(backend, queries):
    """Cross-attention, and layers that are asked for a few positions only."""
    results = []
    for each in (backend, "plain"):
        torch.manual_seed(0)
        query, key, value = (torch.randn(3, 2, n, 4, dtype=torch.float64, requires_grad=True) for n in (queries, 7, 7))
        output = attend(query, key, value, context_of(lengths=torch.tensor([7, 2, 5])), 0.0, each)
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
        gradients = torch.autograd.grad((output * weights).sum(), (query, key, value))
        results.append([output, *gradients])
    for fast, plain in zip(*results):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", [*HERE, "plain"])
def test_causal(backend):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    output = attend(query, key, value, context_of(causal=True), 0.0, backend)
    for place in range(6):
        alone = attend(
            query[:, :, place : place + 1], key[:, :, : place + 1], value[:, :, : place + 1], context_of(), 0.0, backend
        )
        torch.testing.assert_close(output[:, :, place : place + 1], alone)


# Dropout


def test_gradients_are_those_of_the_dropped_weights():
    """With the mask that was drawn, the plain formula gives the same output and gradients."""
    length, width, heads = 12, 12, 2
    problem = Problem(3, heads, length, width, 20, shared=False, padded=True, layers=1)
    probe = Problem(3, heads, length, width, 20, shared=False, padded=True, layers=1)
    with torch.no_grad():
        probe.qkv[0][:, :, 2] = torch.eye(length, dtype=torch.float64)[None, :, None]
        torch.manual_seed(5)
        (weights,), (whole,) = probe.outputs("cpu", 0.4), probe.outputs("plain")
    torch.manual_seed(5)
    actual = problem.results("cpu", 0.4)
    mask = weights != 0
    assert mask.sum() / (whole != 0).sum() == pytest.approx(0.6, abs=0.1)
    scale = 65536 / (65536 - 102 * 256)  # 0.4 is 102 / 256

    def masked(query, key, value, bias, dropout, backend):
        logits = query @ key.transpose(-2, -1) * width**-0.5 + bias.dense(key)
        return (logits.softmax(dim=-1) * mask * scale) @ value * (~bias.blind(length) if blind else 1)

    blind = context_of(lengths=problem.lengths).blind(length) is not None
    for fast, plain in zip(actual, problem.results("plain", 0.4, masked), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_attention_dropout_only_while_training(kind):
    torch.manual_seed(0)
    attention = kind(LayerConfig(embed_dim=16, ffn_embed_dim=32, attention_heads=2, attention_dropout=0.5), number=0)
    states = torch.randn(2, 12, 16)
    context = context_of()
    read = context if kind is SelfAttention else memories([attention], states, context)[0]
    attention.eval()
    assert torch.equal(attention(states, read), attention(states, read))
    attention.train()
    assert not torch.equal(attention(states, read), attention(states, read))


# Queries, keys and values of one product


class Operations(TorchDispatchMode):
    """Records the names of torch's operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("backend", "copies"), [("cpu", False), ("plain", True)])
def test_gradients_that_lie_together_are_not_copied(backend, copies):
    qkv = torch.randn(2, 5, 3, 2, 4, requires_grad=True)
    output = attend(*split_packed(qkv * 1.0), context_of(), 0.0, backend)
    with Operations() as operations:
        output.sum().backward()
    assert any("bmm" in name for name in operations.names)
    assert any("stack" in name or "cat" in name for name in operations.names) == copies


def test_split_packed_without_all_gradients():
    qkv = torch.randn(2, 5, 3, 2, 4, requires_grad=True)
    split_packed(qkv)[1].sum().backward()
    expected = torch.zeros_like(qkv)
    expected[:, :, 1] = 1
    assert torch.equal(qkv.grad, expected)
