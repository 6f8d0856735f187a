"""Singular values and effective rank of millions of rows in constant memory.

The singular values of X <float>[n, D] are the square roots of the eigenvalues of its Gram matrix X^T X <float>[D, D],
which is a sum over rows: batches are added and forgotten.
"""

import torch
from torch import Tensor

# Sums of squares that are equal on paper differ by rounding; this much of the total decides no rank.
_ROUNDING = 1e-12


class GramAccumulator:
    """The sum of x x^T, the sum of x and the number of rows x.

    The sums are kept in double precision. The product over the rows of one call is taken in single precision by
    default, as fast as the model's own products; its rounding, about 1e-7 of the largest eigenvalue, hides singular
    values below about 3e-4 of the largest. With ``double`` the products are exact to about 1e-16 and the limit is
    about 1e-8.

    Args:
        width: D.
        device: where the rows will be.
        double: take the products in double precision.
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
        """A new accumulator for the rows of both."""
        result = GramAccumulator(len(self.sums), self.sums.device, self.product_type == torch.float64)
        result.rows = self.rows + other.rows
        result.squares = self.squares + other.squares
        result.sums = self.sums + other.sums
        return result

    def gram(self, centered: bool = False) -> Tensor:
        """<float64>[D, D] on the CPU: X^T X, of the rows minus their mean if ``centered``.

        Raises:
            ValueError: if any row held a value that is not a number, or infinite.
        """
        if not bool(torch.isfinite(self.squares).all()):
            raise ValueError("the representations hold values that are not finite: run the model in single precision")
        gram = self.squares
        if centered and self.rows:
            gram = gram - torch.outer(self.sums, self.sums) / self.rows
        return ((gram + gram.T) / 2).cpu()


def singular_values(gram: Tensor) -> Tensor:
    """Singular values of X from its Gram matrix.

    Args:
        gram: <float64>[D, D] X^T X.

    Returns:
        <float64>[D], falling; rounding that made an eigenvalue negative is cut off at 0.
    """
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0.0).sqrt()


def effective_rank(values: Tensor, tau: float) -> int:
    """The tau-effective rank (section 2.2, after Cai et al., 2021).

    Args:
        values: <float64>[D] singular values, falling.
        tau: in (0, 1].

    Returns:
        the smallest k such that the k largest squared singular values sum to at least ``tau`` of the sum of all; 0 if
        all are 0.

    Raises:
        ValueError: if tau lies outside (0, 1].
    """
    if not 0.0 < tau <= 1.0:
        raise ValueError(f"tau must lie in (0, 1] and is {tau}")
    energy = values.double().square().cumsum(dim=0)
    total = float(energy[-1])
    if total == 0.0:
        return 0
    return int((energy < (tau - _ROUNDING) * total).sum()) + 1
