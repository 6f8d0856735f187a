"""The loss in chunks equals linear, then cross_entropy, in value and all gradients, and holds no more than a chunk."""

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fairseq_maelm.modules import linear_cross_entropy as module
from fairseq_maelm.modules.linear_cross_entropy import (
    ChunkSettings,
    default_settings,
    linear_cross_entropy,
    linear_log_probabilities,
    pad_vocabulary,
)


class Inputs(NamedTuple):
    states: Tensor
    weight: Tensor
    bias: Tensor
    target: Tensor

    def leaves(self, dtype: torch.dtype) -> "Inputs":
        """The same values, each as a new leaf."""
        cast = (tensor.detach().to(dtype).requires_grad_() for tensor in self[:3])
        return Inputs(*cast, self.target)

    def gradients(self) -> list[Tensor]:
        return [tensor.grad for tensor in self[:3]]


def inputs(rows=7, width=5, vocabulary=30, seed=0, scale=1.0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, bias = draw(vocabulary, width) * scale, draw(vocabulary)
    return Inputs(draw(rows, width), weight, bias, torch.randint(vocabulary, (rows,), generator=generator))


def plainly(given: Inputs) -> Tensor:
    logits = F.linear(*given[:3])
    return F.cross_entropy(logits.float() if logits.dtype.itemsize == 2 else logits, given.target, reduction="sum")


@settings(max_examples=60)
@given(
    rows=st.integers(0, 12),
    width=st.integers(1, 6),
    vocabulary=st.integers(1, 40),
    chunk=st.integers(1, 300),
    block=st.integers(1, 300),
    multiple=st.sampled_from([1, 8, 64]),
    scale=st.sampled_from([1.0, 0.0, 128.0, -0.5]),
    seed=st.integers(0, 100),
)
def test_equals_linear_then_cross_entropy(rows, width, vocabulary, chunk, block, multiple, scale, seed):
    drawn = inputs(rows, width, vocabulary, seed)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        expected = drawn.leaves(torch.float64)
        loss = plainly(expected)
        (loss * scale).backward()
        actual = drawn.leaves(dtype)
        result = linear_cross_entropy(*actual, ChunkSettings(dtype, chunk, block, multiple))
        (result.loss * scale).backward()
        torch.testing.assert_close(result.loss.double(), loss, rtol=tolerance, atol=tolerance)
        for got, wanted in zip(actual.gradients(), expected.gradients()):
            assert got.shape == wanted.shape and got.dtype == dtype
            torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance * max(1.0, abs(scale)))
        guesses = F.linear(*actual[:3]).argmax(dim=-1)
        assert result.correct == (guesses == drawn.target).sum()


def relative_errors(actual: Inputs, exact: Inputs, scale: float = 1.0) -> list[float]:
    pairs = zip(actual.gradients(), exact.gradients())
    return [((got.double() / scale - wanted).norm() / wanted.norm()).item() for got, wanted in pairs]


@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, 2.0**7)])
@pytest.mark.parametrize("chunk", [2000 * 16, 2000 * 96])
def test_half_precision_is_as_exact_as_the_plain_way(dtype, scale, chunk):
    drawn = inputs(rows=96, width=32, vocabulary=2000, scale=0.8)
    # All sides start from the same rounded numbers.
    drawn = Inputs(*(tensor.to(dtype).double() for tensor in drawn[:3]), drawn.target)
    exact, plain, ours = drawn.leaves(torch.float64), drawn.leaves(dtype), drawn.leaves(dtype)
    plainly(exact).backward()
    plain_loss = plainly(plain)
    (plain_loss * scale).backward()
    result = linear_cross_entropy(*ours, ChunkSettings(dtype, chunk, 2000 * 16, 1))
    (result.loss * scale).backward()
    assert result.loss.dtype == torch.float32
    exact_loss = plainly(exact).item()
    bound = max(1.25 * abs(plain_loss.item() - exact_loss), 1e-5 * exact_loss)
    assert abs(result.loss.item() - exact_loss) <= bound
    for own, other in zip(relative_errors(ours, exact, scale), relative_errors(plain, exact, scale)):
        assert own <= 1.25 * other


def test_fp16_keeps_small_probabilities_by_the_scale_of_the_loss():
    """Without targets among them, these symbols have probabilities of 1e-8, which fp16 cannot hold unscaled."""
    states = torch.ones(4, 2, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(300, 2, dtype=torch.float16, requires_grad=True)
    bias = torch.full((300,), -18.4, dtype=torch.float16).index_fill_(0, torch.tensor([7]), 0.0).requires_grad_()
    loss = linear_cross_entropy(states, weight, bias, torch.full((4,), 7)).loss
    (loss * 2.0**10).backward()
    expected = 4 * torch.exp(bias.detach()[8].double()).item()
    assert weight.grad[8, 0].item() / 2.0**10 == pytest.approx(expected, rel=2e-2)
    assert bias.grad[8].item() / 2.0**10 == pytest.approx(expected, rel=2e-2)


def test_autocast_computes_in_its_type_and_gives_gradients_in_the_parameters():
    drawn = inputs(rows=64, width=32, vocabulary=500)
    exact, plain, ours = (drawn.leaves(dtype) for dtype in (torch.float64, torch.float32, torch.float32))
    plainly(exact).backward()
    with torch.autocast("cpu", torch.bfloat16):
        assert default_settings(ours.states, ours.weight).dtype == torch.bfloat16
        plain_loss, loss = plainly(plain), linear_cross_entropy(*ours).loss
    assert loss.dtype == torch.float32
    plain_loss.backward()
    loss.backward()
    assert all(gradient.dtype == torch.float32 for gradient in ours.gradients())
    for own, other in zip(relative_errors(ours, exact), relative_errors(plain, exact)):
        assert 1e-4 < own <= 1.25 * other


def test_ties_count_as_argmax_counts_them():
    weight = torch.tensor([[1.0], [2.0], [2.0], [0.0]])
    states, bias = torch.ones(4, 1), torch.zeros(4)
    assert (states @ weight.t()).argmax(dim=-1).tolist() == [1] * 4
    assert linear_cross_entropy(states, weight, bias, torch.tensor([0, 1, 2, 3])).correct == 1
    constant = torch.zeros(40, 1)
    assert linear_cross_entropy(states, constant, torch.zeros(40), torch.tensor([0, 0, 9, 39])).correct == 2


def test_padding_of_the_vocabulary_has_no_probability_and_no_guess():
    """Logits of -100 for all that exist: padding with logits of 0 would be far more probable."""
    given = inputs(vocabulary=30)
    bias = torch.full((30,), -100.0, dtype=torch.float64)
    padded, padded_bias = pad_vocabulary(given.weight, bias, ChunkSettings(torch.float32, 1, 1, 64))
    assert padded.shape == (64, 5) and padded.dtype == padded_bias.dtype == torch.float32
    assert not padded[30:].any() and torch.isneginf(padded_bias[30:]).all()
    guesses = F.linear(given.states, given.weight, bias).argmax(dim=-1)
    plain, result = (
        linear_cross_entropy(given.states, given.weight, bias, guesses, ChunkSettings(torch.float64, 99, 66, multiple))
        for multiple in (1, 64)
    )
    torch.testing.assert_close(result.loss, plain.loss, rtol=1e-12, atol=0)
    assert result.correct == plain.correct == 7


def test_padding_where_there_is_none_to_add_copies_nothing():
    weight, bias = torch.zeros(64, 3), torch.zeros(64)
    assert pad_vocabulary(weight, bias, ChunkSettings(torch.float32, 1, 1, 64))[0] is weight


def test_a_graph_may_be_gone_through_twice():
    drawn = inputs()
    once, twice = drawn.leaves(torch.float64), drawn.leaves(torch.float64)
    loss = linear_cross_entropy(*twice).loss
    (loss * 3).backward(retain_graph=True)
    loss.backward()
    (linear_cross_entropy(*once).loss * 4).backward()
    for first, second in zip(once.gradients(), twice.gradients()):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Watches the number of elements of every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [value.numel() for value in tree_iter(result) if isinstance(value, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("with_gradients", [True, False])
def test_no_tensor_is_larger_than_a_chunk(with_gradients):
    given = inputs(rows=90, width=2, vocabulary=100)
    if with_gradients:
        given = given.leaves(torch.float32)
    with LargestTensor() as watch:
        loss = linear_cross_entropy(*given, ChunkSettings(torch.float32, 1000, 1000, 1)).loss
        if with_gradients:
            loss.backward()
    assert watch.elements == 1000
    assert loss.requires_grad == with_gradients
    with LargestTensor() as watch:
        plainly(given)
    assert watch.elements == 9000


def test_without_gradients_only_the_loss_is_computed():
    given = inputs().leaves(torch.float64)
    with torch.no_grad():
        loss = linear_cross_entropy(*given).loss
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plainly(given).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_log_probabilities_of_several_targets(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_CHUNK", 100)
    monkeypatch.setattr(module, "_ROWS_IN_CACHE", 2)
    given = inputs(rows=rows)
    target = torch.randint(30, (rows, 3), generator=torch.Generator().manual_seed(1))
    expected = F.linear(*given[:3]).log_softmax(dim=-1).gather(1, target)
    torch.testing.assert_close(linear_log_probabilities(*given[:3], target), expected)
    single = [tensor.float() for tensor in given[:3]]
    with torch.autocast("cpu", torch.bfloat16):
        rough = linear_log_probabilities(*single, target)
    assert rough.dtype == torch.float32 and rough.shape == target.shape
    torch.testing.assert_close(rough.double(), expected, rtol=0, atol=0.1)
