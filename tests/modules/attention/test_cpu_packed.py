"""Sequences computed together, one behind another or padded, get what each gets alone, gradients included."""

import pytest
import torch
from attention_problem import Problem, attend
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_maelm.modules.attention import cpu as attention_cpu
from fairseq_maelm.modules.attention.bias import AttentionBias
from fairseq_maelm.modules.attention.cpu_packed import _members_of_batch, attend_packed
from fairseq_maelm.modules.attention.packing import Packing

HEADS, WIDTH, SPAN = 2, 4, 40
# Attention weights computed together: of one sequence, of some, of all.
LIMITS = [1, 600, 10**9]


@pytest.fixture(params=LIMITS, ids=["one by one", "some together", "all together"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    limit_weights(monkeypatch, request.param)
    return request.param


def limit_weights(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(attention_cpu, "_WEIGHTS_TOGETHER", limit)
    _members_of_batch.cache_clear()


class Batch:
    """Random queries, keys and values of sequences of given lengths, and a bias of their distances."""

    def __init__(self, lengths: list[int], shared: bool, first_alone: bool, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.lengths, self.first_alone = lengths, first_alone
        self.qkv = draw(sum(lengths), 3, HEADS, WIDTH).requires_grad_()
        self.table = draw(HEADS, 2 * SPAN - 1).requires_grad_()
        rows = 1 if shared else len(lengths)
        self.positions = torch.stack(
            [torch.randperm(SPAN, generator=generator)[: max(lengths)].sort().values for _ in range(rows)]
        )
        self.weights = draw(len(lengths) if first_alone else sum(lengths), HEADS, WIDTH)

    def gradients(self, output: Tensor) -> list[Tensor]:
        return [output.detach(), *torch.autograd.grad((output * self.weights).sum(), [self.qkv, self.table])]

    def packed(self, dropout: float = 0.0) -> Tensor:
        slots = torch.cat([torch.arange(n) + row * max(self.lengths) for row, n in enumerate(self.lengths)])
        packing = Packing(slots, tuple(self.lengths), (len(self.lengths), max(self.lengths)))
        bias = AttentionBias(self.table, self.positions, packing=packing)
        if not self.first_alone:
            return attend_packed(None, self.qkv, bias, dropout)
        return attend_packed(
            self.qkv[packing.first, 0], self.qkv[:, 1:], bias.read_from(self.positions[:, :1]), dropout
        )

    def one_by_one(self) -> Tensor:
        outputs = []
        for row, qkv in enumerate(self.qkv.split(self.lengths)):
            positions = self.positions[row if len(self.positions) > 1 else 0, : len(qkv)][None]
            query, key, value = qkv.permute(1, 2, 0, 3)[:, None]
            output = attend(query, key, value, AttentionBias(self.table, positions), 0.0, "plain")[0].transpose(0, 1)
            outputs.append(output[:1] if self.first_alone else output)
        return torch.cat(outputs)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9),
    shared=st.booleans(),
    first_alone=st.booleans(),
    limit=st.sampled_from(LIMITS),
    seed=st.integers(0, 1000),
)
def test_packed_sequences_get_what_they_get_alone(
    lengths: list[int], shared: bool, first_alone: bool, limit: int, seed: int
) -> None:
    batch = Batch(lengths, shared, first_alone, seed)
    with pytest.MonkeyPatch.context() as patched:
        limit_weights(patched, limit)
        actual = batch.gradients(batch.packed())
    _members_of_batch.cache_clear()
    for ours, expected in zip(actual, batch.gradients(batch.one_by_one()), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_groups_hold_what_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of 3 tokens and two heads have 18 weights: two of them stay below 40, and those of 5 stand alone."""
    limit_weights(monkeypatch, 40)
    groups = _members_of_batch((3, 5, 3, 1, 3), True, 2)
    assert [group.sequences.tolist() for group in groups] == [[3, 0], [2, 4], [1]]
    assert [group.shape for group in groups] == [(2, 2, 3, 3), (2, 2, 3, 3), (1, 2, 5, 5)]
    assert groups[0].keys.tolist() == [[11, 15, 15], [0, 1, 2]] and groups[2].missing is None
    # One query of each: ten weights for the longest.
    first_alone = _members_of_batch((3, 5, 3, 1, 3), False, 2)
    assert [group.sequences.tolist() for group in first_alone] == [[3, 0, 2, 4], [1]]


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_packed_sequences_drop_in_the_backward_pass_what_they_dropped_before(
    together: int, shared: bool, first_alone: bool
) -> None:
    """Along a direction, the gradient is what the result changes by under the same decisions."""
    batch = Batch([3, 11, 1, 7, 7, 12], shared, first_alone)

    def loss() -> Tensor:
        torch.manual_seed(11)
        return (batch.packed(0.4) * batch.weights).sum()

    leaves = [batch.qkv, batch.table]
    gradients = torch.autograd.grad(loss(), leaves)
    directions = [torch.randn_like(leaf) for leaf in leaves]
    expected = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions))
    step, values = 1e-6, []
    with torch.no_grad():
        for sign in (1, -2):
            for leaf, direction in zip(leaves, directions):
                leaf.add_(direction, alpha=sign * step)
            values.append(loss())
    torch.testing.assert_close((values[0] - values[1]) / (2 * step), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("shared", [False, True])
def test_padded_batches_do_not_depend_on_their_groups(
    monkeypatch: pytest.MonkeyPatch, shared: bool, dropout: float
) -> None:
    """Also with dropout: the decisions are drawn for the whole batch."""
    results = []
    for limit in LIMITS:
        limit_weights(monkeypatch, limit)
        torch.manual_seed(2)
        problem = Problem(5, 2, 11, 4, 20, shared=shared, padded=not shared)
        results.append(problem.results("cpu", dropout))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


def test_a_batch_may_come_first_in_inference_mode() -> None:
    """What is remembered of a batch's lengths serves training as well."""
    _members_of_batch.cache_clear()
    batch = Batch([3, 5, 5], True, False)
    with torch.inference_mode():
        batch.packed()
    torch.manual_seed(0)
    output = batch.packed(0.3)
    assert all(gradient.isfinite().all() for gradient in batch.gradients(output))
