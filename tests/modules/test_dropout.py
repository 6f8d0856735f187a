"""Dropout: its share, its mean, its gradient, and that a seed decides everything."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.modules.dropout import add_dropped, draw_decisions, dropout, dropout_grid


@given(st.floats(1e-6, 1 - 1e-6))
def test_probabilities_are_close_and_their_scale_exact(probability):
    grid = dropout_grid(probability)
    values = 2 ** (8 * grid.dtype.itemsize)
    dropped = (grid.threshold + values // 2) / values
    assert abs(dropped - probability) <= 0.02 * min(probability, 1 - probability)
    assert grid.scale * (1 - dropped) == pytest.approx(1, rel=1e-9)
    assert torch.iinfo(grid.dtype).min <= grid.threshold <= torch.iinfo(grid.dtype).max


@pytest.mark.parametrize(("probability", "bits"), [(0.1, 8), (0.5, 8), (0.3, 8), (0.01, 16), (1e-5, 32)])
def test_no_more_random_numbers_than_needed(probability, bits):
    assert dropout_grid(probability).dtype.itemsize * 8 == bits


@pytest.mark.parametrize("probability", [0.5, 0.01, 1e-5])
def test_integers_are_uniform(probability):
    torch.manual_seed(0)
    grid = dropout_grid(probability)
    drawn = draw_decisions(torch.Size([100, 1001]), grid)
    assert drawn.shape == (100, 1001) and drawn.dtype == grid.dtype
    scaled = drawn.double() / 2 ** (8 * grid.dtype.itemsize)
    assert abs(scaled.mean()) < 0.005 and abs(scaled.std() - 12**-0.5) < 0.003
    assert scaled.min() < -0.49 and scaled.max() > 0.49
    # Neighbors come from one 64-bit number.
    assert abs((scaled[:, 1:] * scaled[:, :-1]).mean()) < 0.002


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.01])
def test_share_and_mean(probability):
    torch.manual_seed(0)
    output = dropout(torch.ones(1000, 401), probability, training=True)
    deviation = (probability * (1 - probability) / output.numel()) ** 0.5
    assert abs((output == 0).double().mean() - probability) < 5 * deviation + 0.02 * probability
    assert abs(output.double().mean() - 1) < 5 * deviation / (1 - probability)
    assert len(output.unique()) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradient_is_that_of_the_mask(dtype):
    torch.manual_seed(0)
    # torch 2.6 draws zeros in bfloat16 itself, which look dropped.
    states = torch.randn(7, 33).to(dtype).requires_grad_()
    output = dropout(states, 0.3, training=True)
    assert output.dtype == dtype
    gradient = torch.randn(7, 33, dtype=dtype)
    output.backward(gradient)
    scale = dropout_grid(0.3).scale
    torch.testing.assert_close(output, states * (output != 0) * scale)
    torch.testing.assert_close(states.grad, gradient * (output != 0) * scale)


@pytest.mark.parametrize(
    ("dtype", "residual_dtype", "tolerance"),
    [
        (torch.bfloat16, torch.float32, 0.02),
        (torch.bfloat16, torch.bfloat16, 0.02),
        (torch.float32, torch.float32, 1e-6),
    ],
)
def test_sum_with_residual(dtype, residual_dtype, tolerance):
    """As the sum of both, in the wider of the types, with both gradients."""
    states = torch.randn(5, 18).to(dtype).requires_grad_()
    residual = torch.randn(5, 18).to(residual_dtype).requires_grad_()
    gradient = torch.randn(5, 18).to(residual_dtype)
    results = []
    for function in (add_dropped, lambda first, second, *settings: first + dropout(second, *settings)):
        torch.manual_seed(0)
        output = function(residual, states, 0.3, True)
        assert output.dtype == residual_dtype
        results.append([output, *torch.autograd.grad(output, (residual, states), gradient)])
    for fused, plain in zip(*results):
        assert fused.dtype == plain.dtype
        torch.testing.assert_close(fused, plain, rtol=tolerance / 2, atol=tolerance)
    for probability, training in ((0.3, False), (0.0, True)):
        assert torch.equal(add_dropped(residual, states, probability, training), residual + states)


def test_seed_decides_and_calls_differ():
    states = torch.ones(100, 100)
    torch.manual_seed(0)
    first, second = dropout(states, 0.5, True), dropout(states, 0.5, True)
    state = torch.get_rng_state()
    third = dropout(states, 0.5, True)
    torch.manual_seed(0)
    assert torch.equal(dropout(states, 0.5, True), first)
    torch.set_rng_state(state)
    assert torch.equal(dropout(states, 0.5, True), third)
    assert abs((first == second).double().mean() - 0.5) < 0.03


def test_nothing_happens_outside_training():
    states = torch.randn(3, 4)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states
