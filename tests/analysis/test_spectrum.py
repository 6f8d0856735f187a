"""Effective rank, streamed Gram matrices and subspaces, compared with cases worked by hand and the full SVD."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_maelm.analysis.spectrum import (
    GramAccumulator,
    compare_subspaces,
    effective_rank,
    principal_angles,
    singular_values,
)


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
        ([4.0, 2.0, 1.0, 0.0], 1.0, 3),
        ([0.0, 0.0], 0.9, 0),
    ],
)
def test_effective_rank_of_hand_worked_spectra(values: list[float], tau: float, rank: int) -> None:
    assert effective_rank(torch.tensor(values, dtype=torch.float64), tau) == rank


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
@settings(max_examples=30)
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


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        accumulated(torch.tensor([[1.0, float("nan")]]), [1]).gram()


# Subspaces of [MASK] and real tokens


def diagonal(*energies: float) -> torch.Tensor:
    """Return the Gram matrix of rows along the axes with these energies."""
    return torch.diag(torch.tensor(energies, dtype=torch.float64))


def test_mask_on_an_axis_of_its_own() -> None:
    """Real tokens on axes 0 and 1; [MASK] has a quarter of its energy there and the rest on axes 2 and 3."""
    real, mask = diagonal(4, 4, 0, 0), diagonal(1, 0, 2, 1)
    found = compare_subspaces(real, mask, real + mask, tau=0.9)
    assert (found.real_rank, found.mask_rank) == (2, 3)
    assert found.mask_energy_outside == pytest.approx(0.75)
    assert found.real_energy_outside == pytest.approx(0.0, abs=1e-12)
    # 1/4 is held; the directions with 2/4 and 1/4 are both needed to reach 0.9.
    assert found.mask_dimensions == 2
    assert found.outside_rank == 2
    # Energies 5, 4, 2, 1 of 12: 11/12 with three directions.
    assert found.joint_gain == 3 - 2
    assert found.principal_angles == pytest.approx([0.0, 90.0])


def test_rotation_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    real, mask = diagonal(5, 4, 1, 0.3), diagonal(1, 0.5, 2, 1)
    plain = compare_subspaces(real, mask, real + mask, 0.8)
    turned = compare_subspaces(*(rotation @ each @ rotation.T for each in (real, mask, real + mask)), 0.8)
    # An angle of 0 is exact up to the square root of double precision, some 1e-6 degrees.
    for one, other in zip(plain, turned):
        assert one == pytest.approx(other, abs=5e-6)


@pytest.mark.parametrize("angle", [1e-9, 60.0, 89.9999999])
def test_principal_angle_of_two_lines(angle: float) -> None:
    radians = math.radians(angle)
    first = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    second = torch.tensor([[math.cos(radians)], [math.sin(radians)], [0.0]], dtype=torch.float64)
    assert float(principal_angles(first, second)) == pytest.approx(angle, rel=1e-6)


def test_no_mask_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="both real and"):
        compare_subspaces(diagonal(1, 1), diagonal(0, 0), diagonal(1, 1), 0.9)
