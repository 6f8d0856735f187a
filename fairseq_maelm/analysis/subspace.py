"""Where [MASK] lives: the subspace of its representations against that of real tokens, from Gram matrices alone.

Theorem 2.2 says that in some layer the row space of the [MASK] representations H_M is not contained in that of the real
tokens' representations H_R. With noise every row space is all of R^D, so row spaces are replaced by spans of leading
directions: as many right singular vectors as the tau-effective rank.
"""

from typing import NamedTuple

import torch
from scipy.linalg import subspace_angles
from torch import Tensor

from fairseq_maelm.analysis.spectrum import effective_rank, singular_values


class SubspaceComparison(NamedTuple):
    """[MASK] against real tokens in one layer, for one tau.

    P is the projection on the real tokens' leading directions, Q = I - P.

    Attributes:
        real_rank: k, the tau-effective rank of the real tokens, which is the dimension of P.
        mask_rank: m, that of [MASK].
        mask_energy_outside: |H_M Q|^2 / |H_M|^2 in [0, 1], the share of [MASK]'s energy that P does not hold.
        real_energy_outside: the same share of the real tokens themselves, at most 1 - tau; what to compare with.
        principal_angles: min(k, m) angles in degrees, rising, between the two spans of leading directions. An angle
            of 90 degrees is a direction of one span that is orthogonal to the whole other one.
        mask_dimensions: the least number of directions that must be added to the real tokens' k for the span to hold
            tau of [MASK]'s energy; 0 if the real tokens' directions hold it already.
        outside_rank: the tau-effective rank of H_M Q, the size of what P does not hold, however weak.
        joint_gain: the tau-effective rank of the joint representations minus k: what Figure 1(a) shows as a gap.
    """

    real_rank: int
    mask_rank: int
    mask_energy_outside: float
    real_energy_outside: float
    principal_angles: list[float]
    mask_dimensions: int
    outside_rank: int
    joint_gain: int


def leading_directions(gram: Tensor, tau: float) -> Tensor:
    """<float64>[D, k] orthonormal: the right singular vectors with the k = rank_tau largest singular values."""
    _, vectors = torch.linalg.eigh(gram)
    return vectors.flip(1)[:, : effective_rank(singular_values(gram), tau)]


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles between two subspaces.

    Args:
        first: <float64>[D, k] orthonormal columns.
        second: <float64>[D, m] orthonormal columns.

    Returns:
        <float64>[min(k, m)] in degrees, rising, in [0, 90].
    """
    return torch.rad2deg(torch.from_numpy(subspace_angles(first.numpy(), second.numpy())).flip(0))


def compare_subspaces(real: Tensor, mask: Tensor, joint: Tensor, tau: float) -> SubspaceComparison:
    """Compare [MASK] with real tokens.

    Args:
        real: <float64>[D, D] Gram matrix of the real tokens.
        mask: <float64>[D, D] of the [MASK] tokens.
        joint: <float64>[D, D] of both together, in the input that has the masks.
        tau: in (0, 1].

    Raises:
        ValueError: if the real or the [MASK] tokens have no energy at all.
    """
    if float(real.trace()) <= 0.0 or float(mask.trace()) <= 0.0:
        raise ValueError("both real and [MASK] tokens are needed to compare their subspaces")
    inner = leading_directions(real, tau)
    own = leading_directions(mask, tau)
    outer = torch.eye(len(real), dtype=real.dtype) - inner @ inner.T
    outside = singular_values(outer @ mask @ outer)
    energy = outside.square()
    total = float(mask.trace())
    held = 1.0 - float(energy.sum()) / total
    missing = tau - held - energy.cumsum(dim=0) / total
    return SubspaceComparison(
        real_rank=inner.shape[1],
        mask_rank=own.shape[1],
        mask_energy_outside=min(max(1.0 - held, 0.0), 1.0),
        real_energy_outside=max(float((outer @ real).trace()) / float(real.trace()), 0.0),
        principal_angles=principal_angles(inner, own).tolist(),
        mask_dimensions=0 if held >= tau - 1e-12 else int((missing > 1e-12).sum()) + 1,
        outside_rank=effective_rank(outside, tau),
        joint_gain=effective_rank(singular_values(joint), tau) - inner.shape[1],
    )
