"""Singular values, effective rank and subspaces for millions of rows in constant memory.

The singular values of X <float>[n, D] are the square roots of the eigenvalues of its Gram matrix X^T X <float>[D, D].
The Gram matrix is a sum over rows, so batches can be added one by one.

Theorem 2.2 says that in some layer the row space of the [MASK] representations H_M is not contained in that of the real
tokens' representations H_R. With noise every row space is all of R^D, so each row space is replaced by the span of the
first k right singular vectors, the leading directions, where k is the tau-effective rank.
"""

from typing import NamedTuple

import torch
from scipy.linalg import subspace_angles
from torch import Tensor

# Share of the total energy that counts as rounding error when an effective rank is computed.
_ROUNDING = 1e-12


class GramAccumulator:
    """Running sums of x^T x and x over rows x, and the number of rows.

    Sums have double precision. Each call computes its product x^T x in single precision, or with ``double`` in double
    precision. Rounding errors are about 1e-7 (``double``: 1e-16) of the largest eigenvalue, so singular values below
    about 3e-4 (1e-8) of the largest are lost.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu", double: bool = False) -> None:
        self.product_type = torch.float64 if double else torch.float32
        self.rows = 0
        self.squares = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.sums = torch.zeros(width, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        """Add rows <float>[n, D]; n may be 0."""
        rows = rows.detach().to(self.product_type)
        self.squares += rows.T @ rows
        self.sums += rows.sum(dim=0, dtype=torch.float64)
        self.rows += len(rows)

    def merged(self, other: "GramAccumulator") -> "GramAccumulator":
        """Return the sum of two accumulators."""
        result = GramAccumulator(len(self.sums), self.sums.device, self.product_type == torch.float64)
        result.rows = self.rows + other.rows
        result.squares = self.squares + other.squares
        result.sums = self.sums + other.sums
        return result

    def gram(self, centered: bool = False) -> Tensor:
        """Return X^T X <float64>[D, D] on the CPU; with ``centered``, the mean is subtracted from the rows."""
        if not bool(torch.isfinite(self.squares).all()):
            raise ValueError("the representations have values that are not finite: run the model in single precision")
        gram = self.squares
        if centered and self.rows:
            gram = gram - torch.outer(self.sums, self.sums) / self.rows
        return ((gram + gram.T) / 2).cpu()


def singular_values(gram: Tensor) -> Tensor:
    """Return the descending singular values <float64>[D] of X, at least 0, given its Gram matrix <float64>[D, D]."""
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0.0).sqrt()


def effective_rank(values: Tensor, tau: float) -> int:
    """Return the tau-effective rank (section 2.2, after Cai et al., 2021) of descending singular values <float64>[D].

    This is the smallest k with s_1^2 + ... + s_k^2 >= tau (s_1^2 + ... + s_D^2); 0 if all singular values are 0.
    """
    energy = values.double().square().cumsum(dim=0)
    total = float(energy[-1])
    if total == 0.0:
        return 0
    return int((energy < (tau - _ROUNDING) * total).sum()) + 1


class SubspaceComparison(NamedTuple):
    """[MASK] and real tokens in a layer, for one tau; P projects onto the real ones' leading directions, Q = I - P."""

    real_rank: int  # the tau-effective rank k of the real tokens, which is the rank of P
    mask_rank: int  # the tau-effective rank m of [MASK]
    mask_energy_outside: float  # |H_M Q|^2 / |H_M|^2 in [0, 1], the share of [MASK]'s energy outside of P
    real_energy_outside: float  # for comparison the same share of the real tokens, at most 1 - tau
    # min(k, m) rising angles in degrees between the two spans of leading directions. At 90 degrees, a direction of one
    # span is orthogonal to the whole other span.
    principal_angles: list[float]
    # The smallest number of directions to add to the real tokens' k directions so that their span holds the share tau
    # of [MASK]'s energy; 0 if the k directions suffice.
    mask_dimensions: int
    outside_rank: int  # the tau-effective rank of H_M Q
    joint_gain: int  # the tau-effective rank of the joint representations minus k, the gap in Figure 1(a)


def leading_directions(gram: Tensor, tau: float) -> Tensor:
    """Return the right singular vectors <float64>[D, k] of the k = rank_tau largest singular values."""
    _, vectors = torch.linalg.eigh(gram)
    return vectors.flip(1)[:, : effective_rank(singular_values(gram), tau)]


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Return ascending principal angles <float64>[min(k, m)], in degrees, between orthonormal bases [D, k], [D, m]."""
    return torch.rad2deg(torch.from_numpy(subspace_angles(first.numpy(), second.numpy())).flip(0))


def compare_subspaces(real: Tensor, mask: Tensor, joint: Tensor, tau: float) -> SubspaceComparison:
    """Compare <mask> with real tokens, given Gram matrices <float64>[D, D] for each and for both together."""
    if float(real.trace()) <= 0.0 or float(mask.trace()) <= 0.0:
        raise ValueError("both real and <mask> tokens are needed to compare their subspaces")
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
