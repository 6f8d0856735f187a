"""The inequality of Theorem 2.2's proof, by hand, by random search and on a model's weights; and the collapse."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import model_of

from fairseq_maelm.analysis import theorem
from fairseq_maelm.analysis.theorem import (
    AttentionWeights,
    attend_only,
    attention_weights,
    check_layer,
    check_stack,
    combination,
    common_row,
    composite_norm,
    epsilon,
    logarithm_of_recursive_bound,
    random_weights,
)
from fairseq_maelm.modules.attention.context import AttentionContext


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_composite_norm_by_hand() -> None:
    matrix = torch.tensor([[1.0, -2.0], [3.0, 0.0]], dtype=torch.float64)
    assert composite_norm(matrix) == pytest.approx(math.sqrt(4.0 * 3.0))


def test_one_layer_by_hand() -> None:
    """Two real tokens at a and -a, one [MASK] between them, unit weights."""
    a = 0.5
    unit = AttentionWeights(torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64))
    check = check_layer(column(a, -a), torch.tensor([[0.5, 0.5]], dtype=torch.float64), unit)
    after = a * 2 * math.sinh(a * a) / (2 * math.cosh(a * a) + 1)
    assert check.before == pytest.approx(math.sqrt(2) * a)
    assert check.after == pytest.approx(math.sqrt(2) * after)
    assert check.logit_range == pytest.approx(2 * a * a)
    assert check.epsilon == pytest.approx(1 * 1 * 1 * (1 + 1))
    assert check.bound == pytest.approx(4 * 2 * (math.sqrt(2) * a) ** 3)
    assert check.proved
    assert check.holds


def test_epsilon_of_one_head_is_the_paper_s() -> None:
    weights = random_weights(6, 1, torch.Generator().manual_seed(0))
    query_key, value_output = weights.query_key[0], weights.value_output[0]
    expected = float(query_key.abs().sum(dim=0).max()) * composite_norm(value_output) * 3.0 * (1 + 3.0)
    assert epsilon(weights, 3.0) == pytest.approx(expected)


def test_common_row_is_recovered_and_candidates_can_only_help() -> None:
    row = normal(0, 5)
    states = row.repeat(7, 1)
    assert composite_norm(states - common_row(states)) < 1e-12
    noisy = states + normal(1, 7, 5)
    assert composite_norm(noisy - common_row(noisy, row)) <= composite_norm(noisy - row)


def test_combination_reproduces_mask_states_with_rows_that_sum_to_one() -> None:
    real = normal(0, 12, 4)
    weights, misfit = combination(real, normal(1, 3, 4))
    assert torch.allclose(weights @ real, normal(1, 3, 4), atol=1e-9)
    assert torch.allclose(weights.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert misfit < 1e-9
    # Three points span a plane, which holds none of the other five directions.
    _, far = combination(normal(0, 3, 8), normal(1, 3, 8))
    assert 0.1 < far <= 1.0


@pytest.mark.parametrize("difference", [1e-8, 1e-13])
def test_weights_sum_to_one_where_rows_are_nearly_equal(difference: float) -> None:
    """Fewer tokens than dimensions; the inverse of differences that are rounding errors would have no meaning."""
    for seed in range(20):
        row = normal(seed, 1, 64)
        weights, _ = combination(row + difference * normal(seed + 1, 5, 64), row + normal(seed + 2, 4, 64))
        assert (weights.sum(dim=1) - 1).abs().max() < 1e-6


@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(2, 24),
    masks=st.integers(1, 5),
    width=st.sampled_from([2, 4, 6]),
    heads=st.sampled_from([1, 2]),
    scale=st.floats(-3.0, 0.7),
    outlier=st.floats(0.0, 3.0),
    convex=st.booleans(),
)
@settings(max_examples=150)
def test_inequality_holds(
    seed: int, tokens: int, masks: int, width: int, heads: int, scale: float, outlier: float, convex: bool
) -> None:
    real = normal(seed, tokens, width)
    real[0] *= 10**outlier
    real *= 10**scale / 10**outlier
    combined = normal(seed + 1, masks, tokens)
    combined = combined.softmax(dim=-1) if convex else combined / combined.sum(dim=-1, keepdim=True)
    check = check_layer(real, combined, random_weights(width, heads, torch.Generator().manual_seed(seed)))
    assert check.combination_norm >= 1 - 1e-9
    if check.proved:
        assert check.holds


def trained_like() -> tuple[list[AttentionWeights], torch.Tensor]:
    """Return the attention weights of a model of this package, and the embeddings of its tokens."""
    model = model_of(encoder_layers=6)
    layers = []
    for layer in model.encoder.layers:
        width, heads = 32, 4
        query, key, value = layer.self_attn.qkv_proj.weight.view(3, heads, width // heads, width).transpose(-1, -2)
        output = layer.self_attn.out_proj.weight.view(width, heads, width // heads).permute(1, 2, 0)
        layers.append(attention_weights(query, key, value, output))
    states = model.encoder.layernorm_embedding(model.encoder.embed_tokens.weight)
    return layers, states.detach().double()


def test_inequality_holds_on_a_model_s_layers_at_a_scale_where_it_says_something() -> None:
    layers, states = trained_like()
    checks = [
        check_layer(scale * states[:30], torch.full((2, 30), 1 / 30, dtype=torch.float64), weights)
        for weights in layers
        for scale in (1e-3, 1e-2, 1.0)
    ]
    assert sum(check.proved for check in checks) >= 6
    assert all(check.holds for check in checks if check.proved)
    assert any(check.bound < check.before for check in checks), "no bound is below the residual it starts from"


def test_attention_alone_is_the_model_s_attention_without_biases() -> None:
    layers, states = trained_like()
    module = model_of(encoder_layers=6).encoder.layers[0].self_attn.double()
    module.qkv_proj.bias.data.zero_()
    module.out_proj.bias.data.zero_()
    real, mask = attend_only(states[:7], states[7:9], layers[0])
    expected = module(states[None, :9], AttentionContext())[0]
    assert torch.allclose(torch.cat([real, mask]), expected, atol=1e-9)


def test_rows_become_equal_doubly_exponentially_fast() -> None:
    """With small weights, each layer cubes the residual up to a factor; the recursive bound stays above it."""
    generator = torch.Generator().manual_seed(0)
    layers = [random_weights(8, 1, generator, scale=0.4) for _ in range(8)]
    checks = check_stack(normal(0, 20, 8), normal(1, 4, 8), layers)
    # On some processors the last residual is rounded to zero, which has no logarithm.
    residuals = [*(check.before for check in checks), max(checks[-1].after, math.ulp(0.0))]
    assert len(checks) < 8, "the stack did not collapse"
    assert checks[-1].relative_after < 1e-11
    assert all(later < earlier for earlier, later in zip(residuals, residuals[1:]))
    drops = [math.log10(later / earlier) for earlier, later in zip(residuals[:3], residuals[1:4])]
    assert drops[2] < drops[1] < drops[0] < 0
    bounds = logarithm_of_recursive_bound(checks)
    assert all(math.log10(residual) <= bound + 1e-9 for residual, bound in zip(residuals, bounds))


def test_no_layer_of_a_collapsing_stack_reads_as_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 20 random stacks, down to rows that are equal up to rounding: U 1 = 1, and proved inequalities hold."""
    lost = []

    def combination_watched(real: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, float]:
        weights, misfit = combination(real, mask)
        lost.append(float(((weights.sum(dim=-1) - 1).abs() / weights.abs().sum(dim=-1)).max()))
        return weights, misfit

    monkeypatch.setattr(theorem, "combination", combination_watched)
    checks = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        layers = [random_weights(16, 2, generator) for _ in range(12)]
        checks += check_stack(normal(2 * seed, 20, 16), normal(2 * seed + 1, 4, 16), layers)
    assert len(lost) == len(checks) and max(lost) < 1e-12
    assert sum(check.proved for check in checks) > 20, "the stacks never came into the range of the proof"
    assert min(check.relative for check in checks) < 1e-9, "no stack was near its collapse"
    assert [check for check in checks if check.proved and not check.holds] == []
    # Of least distance, so never farther away than the mean row.
    assert max(check.misfit for check in checks) <= 1 + 1e-9
