"""Effective rank and streamed Gram matrices against hand-worked cases and the full singular value decomposition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.analysis.spectrum import GramAccumulator, effective_rank, singular_values


def random_rows(rows: int, width: int, rank: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, width, generator=generator, dtype=torch.float64)


def accumulated(rows: torch.Tensor, parts: list[int], double: bool = True) -> GramAccumulator:
    accumulator = GramAccumulator(rows.shape[1], double=double)
    for part in rows.split(parts):
        accumulator.add(part)
    return accumulator


@pytest.mark.parametrize(
    ("values", "tau", "rank"),
    [
        ([3.0, 1.0], 0.9, 1),  # 9 / 10 is just enough
        ([3.0, 1.0], 0.91, 2),
        ([2.0, 2.0, 2.0, 2.0], 0.75, 3),
        ([2.0, 2.0, 2.0, 2.0], 0.76, 4),
        ([4.0, 2.0, 1.0, 0.0], 1.0, 3),
        ([5.0, 0.0], 1.0, 1),
        ([0.0, 0.0], 0.9, 0),
    ],
)
def test_effective_rank_of_hand_worked_spectra(values: list[float], tau: float, rank: int) -> None:
    assert effective_rank(torch.tensor(values, dtype=torch.float64), tau) == rank


@pytest.mark.parametrize("tau", [0.0, -0.1, 1.01])
def test_tau_outside_its_range_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match="tau"):
        effective_rank(torch.ones(3, dtype=torch.float64), tau)


@pytest.mark.parametrize("rank", [24, 5, 1])
def test_gram_gives_the_singular_values_of_the_full_decomposition(rank: int) -> None:
    rows = random_rows(500, 24, rank)
    expected = torch.linalg.svdvals(rows)
    actual = singular_values(accumulated(rows, [100] * 5).gram())
    assert torch.allclose(actual[:rank], expected[:rank], rtol=1e-9)
    # Squaring leaves about the square root of double precision where the true value is 0.
    assert float(actual[rank:].max() if rank < 24 else 0.0) < 1e-6 * float(expected[0])
    for tau in (0.5, 0.9, 0.99, 0.999):
        assert effective_rank(actual, tau) == effective_rank(expected, tau)


def test_single_precision_products_keep_what_they_promise() -> None:
    scale = torch.logspace(0, -3, 32, dtype=torch.float64)
    rows = random_rows(4096, 32, 32) * scale
    exact, fast = accumulated(rows, [512] * 8), accumulated(rows.float(), [512] * 8, double=False)
    largest = float(torch.linalg.eigvalsh(exact.gram())[-1])
    assert float((exact.gram() - fast.gram()).abs().max()) < 1e-6 * largest
    for tau in (0.5, 0.9, 0.99):
        values = singular_values(exact.gram()), singular_values(fast.gram())
        assert effective_rank(values[0], tau) == effective_rank(values[1], tau)


@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=30)
def test_any_split_into_batches_and_accumulators_gives_the_same(cuts: list[int], seed: int) -> None:
    rows = random_rows(60, 8, 8, seed)
    edges = [0, *sorted(cuts), 60]
    parts = [rows[start:stop] for start, stop in zip(edges, edges[1:])]
    one = accumulated(rows, [60])
    merged = GramAccumulator(8, double=True)
    for part in parts:
        merged = merged.merged(accumulated(part, [len(part)]))
    assert merged.rows == 60
    for centered in (False, True):
        assert torch.allclose(merged.gram(centered), one.gram(centered), atol=1e-10)


def test_centered_gram_is_that_of_rows_minus_their_mean() -> None:
    rows = random_rows(50, 6, 6) + 3.0
    shifted = rows - rows.mean(dim=0)
    assert torch.allclose(accumulated(rows, [25, 25]).gram(centered=True), shifted.T @ shifted, atol=1e-9)


def test_memory_does_not_grow_with_rows() -> None:
    accumulator = GramAccumulator(4)
    sizes = set()
    for _ in range(5):
        accumulator.add(torch.randn(1000, 4))
        sizes.add(sum(value.numel() for value in vars(accumulator).values() if torch.is_tensor(value)))
    assert sizes == {4 * 4 + 4}


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        accumulated(torch.tensor([[1.0, float("nan")]]), [1]).gram()
