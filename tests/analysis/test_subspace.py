"""Subspaces of [MASK] and real tokens: cases whose answer is known by construction."""

import math

import pytest
import torch

from fairseq_maelm.analysis.subspace import compare_subspaces, leading_directions, principal_angles


def diagonal(*energies: float) -> torch.Tensor:
    """The Gram matrix of rows along the axes with these energies."""
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


def test_mask_inside_the_span_of_real_tokens() -> None:
    real, mask = diagonal(4, 4, 1e-6, 0), diagonal(1, 2, 0, 0)
    found = compare_subspaces(real, mask, real + mask, tau=0.9)
    assert found.mask_energy_outside == pytest.approx(0.0, abs=1e-12)
    assert found.mask_dimensions == 0
    assert found.principal_angles == pytest.approx([0.0, 0.0], abs=1e-9)


def test_rotation_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    real, mask = diagonal(5, 4, 1, 0.3), diagonal(1, 0.5, 2, 1)
    plain = compare_subspaces(real, mask, real + mask, 0.8)
    turned = compare_subspaces(*(rotation @ each @ rotation.T for each in (real, mask, real + mask)), 0.8)
    for one, other in zip(plain, turned):
        assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("angle", [1e-9, 0.3, 45.0, 60.0, 89.9999999])
def test_principal_angle_of_two_lines(angle: float) -> None:
    radians = math.radians(angle)
    first = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    second = torch.tensor([[math.cos(radians)], [math.sin(radians)], [0.0]], dtype=torch.float64)
    assert float(principal_angles(first, second)) == pytest.approx(angle, rel=1e-6)


def test_angles_between_a_plane_and_a_line_do_not_depend_on_the_order() -> None:
    plane = torch.eye(3, dtype=torch.float64)[:, :2]
    line = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64) / math.sqrt(2)
    assert principal_angles(plane, line).tolist() == pytest.approx([45.0])
    assert principal_angles(line, plane).tolist() == pytest.approx([45.0])


def test_leading_directions_are_the_axes_with_most_energy() -> None:
    directions = leading_directions(diagonal(1, 9, 0.1), 0.9)
    assert directions.shape == (3, 2)
    assert directions.abs().sum(dim=1).tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-9)


def test_no_mask_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="both real and"):
        compare_subspaces(diagonal(1, 1), diagonal(0, 0), diagonal(1, 1), 0.9)
