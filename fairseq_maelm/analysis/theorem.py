"""Theorem 2.2 in numbers: the effect of attention alone on representations (appendix A of the paper).

The proof assumes that the [MASK] representations are combinations of the real tokens', H_M = U H_R with U 1 = 1
(equation 3), and follows the residual R = H_R - 1 h^T through a self-attention layer without residual connection and
feed-forward network. It concludes |R'| <= 4 epsilon |R|^3: representations would collapse toward equal rows.

The proof as written has two gaps: it needs exp(x) <= 1 + 2x, and the step before equation (9) bounds a sum over all
rows by its largest term. The inequality is true nonetheless if exp(s) <= 2 (1 + 1 / |U|_inf), where s
(``logit_range``) is the largest difference between two logits of one row of F = R W^QK [R; UR]^T. With r, the attention
for F = 0, and |.| applied entrywise,

    |A_ij - r_j| <= exp(s) r_j (|F_ij| + sum_k r_k |F_ik|),   and therefore
    |R'| <= exp(s) |R| |W^QK| (E_r[|x| |x|^T] + E_r|x| E_r|x|^T) |W^VO|,   x = row j of [R; UR] with probability r_j.

Both matrices in the brackets have an l1 norm of at most |U|_inf^2 |R|_1 |R|_inf, which gives equations (9) and (10)
with 2 exp(s) |U|_inf^2 in place of 4 |U|_inf (1 + |U|_inf).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Residuals below this share of the representations are rounding errors of double precision.
_ROUNDING = 1e-12
# Smallest singular value of the centered real tokens that combinations use, as a share of the tokens' norm. Smaller
# ones would give weights so large that rounding alone moves their sum away from 1.
_SMALLEST_DIFFERENCE = 1e-9


class AttentionWeights(NamedTuple):
    """One self-attention layer, without biases."""

    query_key: Tensor  # <float64>[H, D, D] W^Q W^K^T / sqrt(d_h) of each head
    value_output: Tensor  # <float64>[H, D, D] W^V W^O of each head


class LayerCheck(NamedTuple):
    """Both sides of the inequality for one layer."""

    before: float  # |R| of the real tokens before the layer
    after: float  # |R'| after the layer
    epsilon: float  # as in the paper; for several heads see the function ``epsilon``
    bound: float  # 4 epsilon |R|^3
    logit_range: float  # the largest difference between two logits R W^QK [R; UR]^T of one row
    combination_norm: float  # |U|_inf, at least 1
    misfit: float  # share of H_M, in [0, 1], that is not a combination of H_R; see ``combination``
    relative: float  # |R| / |H_R| before the layer
    relative_after: float  # the same after the layer
    rounding: float  # largest rounding error of ``after``

    @property
    def proved(self) -> bool:
        """Tell whether the logits are in the range for which the inequality is proved."""
        return self.logit_range <= math.log(2.0 * (1.0 + 1.0 / self.combination_norm))

    @property
    def holds(self) -> bool:
        """Tell whether the paper's inequality is true for this layer, up to rounding."""
        return self.after <= self.bound + self.rounding


def composite_norm(matrix: Tensor) -> float:
    """Return sqrt(|X|_1 |X|_inf), the geometric mean of the largest column sum and the largest row sum of |X|."""
    absolute = matrix.abs()
    return math.sqrt(float(absolute.sum(dim=-2).max()) * float(absolute.sum(dim=-1).max()))


def common_row(states: Tensor, *candidates: Tensor) -> Tensor:
    """Return a row h <float64>[D] that makes |R| = |H - 1 h^T| small, for states H <float64>[n, D].

    The paper's minimizer has no closed form, because the composite norm is not convex. The result is the best of the
    given candidates and three rows: the column medians, which minimize the l1 norm; the column means, which minimize
    the Frobenius norm (and the l1 and infinity norms up to a factor of 2); and the mid-ranges, which minimize the
    largest entry.
    """
    rows = [states.mean(dim=0), states.quantile(0.5, dim=0), (states.amax(dim=0) + states.amin(dim=0)) / 2]
    return min([*rows, *candidates], key=lambda row: composite_norm(states - row))


def relative_residual(states: Tensor) -> float:
    """Return |R| / |H| of states H <float64>[n, D]: 0 if all rows are equal, about 1 if they have nothing in common."""
    return composite_norm(states - common_row(states)) / composite_norm(states)


def combination(real: Tensor, mask: Tensor) -> tuple[Tensor, float]:
    """Find the U <float64>[m, n] of least Frobenius norm with H_M = U H_R and U 1 = 1 (equation 3), and its misfit.

    H_R is ``real`` <float64>[n, D], and H_M is ``mask`` <float64>[m, D]. The rows of U sum to 1 up to rounding even if
    the rows of H_R are nearly equal. The misfit is |H_M - U H_R| / |H_M - 1 mean(H_R)^T| (Frobenius) in [0, 1]: 0 if
    every row of H_M is in the affine hull of the rows of H_R. Otherwise U gives the nearest points in the hull.
    """
    mean = real.mean(dim=0)
    centered, offsets = real - mean, mask - mean
    smallest = _SMALLEST_DIFFERENCE * torch.linalg.norm(real)
    weights = offsets @ torch.linalg.pinv(centered, atol=smallest, rtol=1e-10)
    # Each row sums to 0, but only up to the rounding of the mean. Once the states have nearly collapsed, that rounding
    # is as large as the states themselves, and U 1 = 1 would not hold any more. Subtracting the same number for all
    # tokens does not change U H_R, because the rows of ``centered`` sum to 0.
    weights = weights - weights.mean(dim=-1, keepdim=True)
    distance = torch.linalg.norm(offsets)
    misfit = float(torch.linalg.norm(offsets - weights @ centered) / distance) if distance > 0 else 0.0
    return weights + 1.0 / len(real), misfit


def attend_only(real: Tensor, mask: Tensor, weights: AttentionWeights) -> tuple[Tensor, Tensor]:
    """Return real and [MASK] states after attention alone, H' = A H W^VO summed over heads (equation 4)."""
    states = torch.cat([real, mask])
    logits = states @ weights.query_key @ states.T
    attended = (logits.softmax(dim=-1) @ states @ weights.value_output).sum(dim=0)
    return attended[: len(real)], attended[len(real) :]


def epsilon(weights: AttentionWeights, combination_norm: float) -> float:
    """Return |W^QK|_1 |W^VO|_{1,inf} |U|_inf (1 + |U|_inf) (appendix A, after equation 10).

    The paper has one head. For several heads, equations (9) and (10) are summed over the heads before the geometric
    mean: sqrt(sum |W^QK|_1 |W^VO|_1 * sum |W^QK|_1 |W^VO|_inf) replaces the first two factors.
    """
    query_key = weights.query_key.abs().sum(dim=-2).amax(dim=-1)
    columns = weights.value_output.abs().sum(dim=-2).amax(dim=-1)
    rows = weights.value_output.abs().sum(dim=-1).amax(dim=-1)
    product = float((query_key * columns).sum()) * float((query_key * rows).sum())
    return math.sqrt(product) * combination_norm * (1.0 + combination_norm)


def _proof_row(residual: Tensor, row: Tensor, weights: AttentionWeights, combined: Tensor) -> Tensor:
    """Return h' <float64>[D] as the proof defines it after equation (8)."""
    logits = torch.cat([residual, combined @ residual]) @ weights.query_key.transpose(-1, -2) @ row  # [H, n + m]: g, g'
    shares = logits.softmax(dim=-1)
    real = len(residual)
    mixed = shares[:, None, :real] + shares[:, None, real:] @ combined  # r, [H, 1, n]
    return ((mixed @ residual + row) @ weights.value_output).sum(dim=0)[0]


def check_layer(real: Tensor, combined: Tensor, weights: AttentionWeights, misfit: float = 0.0) -> LayerCheck:
    """Compare both sides of |R'| <= 4 epsilon |R|^3 for a layer whose [MASK] states are U H_R.

    ``real`` is H_R <float64>[n, D]; ``combined`` is U <float64>[m, n], whose rows sum to 1 and have this ``misfit``.
    """
    row = common_row(real)
    residual = real - row
    before = composite_norm(residual)
    after_states, _ = attend_only(real, combined @ real, weights)
    after = composite_norm(after_states - common_row(after_states, _proof_row(residual, row, weights, combined)))
    logits = residual @ weights.query_key @ torch.cat([residual, combined @ residual]).T
    norm = float(combined.abs().sum(dim=-1).max())
    constant = epsilon(weights, norm)
    bound = 4.0 * constant * before**3
    return LayerCheck(
        before=before,
        after=after,
        epsilon=constant,
        bound=bound,
        logit_range=float((logits.amax(dim=-1) - logits.amin(dim=-1)).max()),
        combination_norm=norm,
        misfit=misfit,
        relative=before / composite_norm(real),
        relative_after=after / composite_norm(after_states),
        rounding=_ROUNDING * composite_norm(after_states),
    )


def check_stack(real: Tensor, mask: Tensor, layers: Iterable[AttentionWeights]) -> list[LayerCheck]:
    """Check a stack of attention layers under the proof's assumption.

    Before each layer the [MASK] states are replaced by the nearest combination of the real tokens' states, as the proof
    by contradiction assumes. The checks end early when the representations have collapsed, that is when the rows are
    equal up to rounding.
    """
    checks = []
    for weights in layers:
        combined, misfit = combination(real, mask)
        check = check_layer(real, combined, weights, misfit)
        checks.append(check)
        if check.relative_after < _ROUNDING:
            break
        real, mask = attend_only(real, combined @ real, weights)
    return checks


def logarithm_of_recursive_bound(checks: Sequence[LayerCheck]) -> list[float]:
    """Return log10 of the bound on |R^l| that follows from |R^0|, for l = 0 ... len(checks).

    The paper's bound is (4 max epsilon)^((3^l - 1) / 2) |R^0|^(3^l); here each layer has its own epsilon.
    """
    bounds = [math.log10(checks[0].before)]
    for check in checks:
        bounds.append(math.log10(4.0 * check.epsilon) + 3.0 * bounds[-1])
    return bounds


def random_weights(width: int, heads: int, generator: torch.Generator, scale: float = 1.0) -> AttentionWeights:
    """Return attention weights with normal entries of variance ``scale``^2 / D; heads have width D / H."""
    shape = (4, heads, width, width // heads)
    query, key, value, output = scale * torch.randn(shape, generator=generator, dtype=torch.float64) / width**0.5
    return attention_weights(query, key, value, output.transpose(-1, -2))


def attention_weights(query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> AttentionWeights:
    """Combine projections of row vectors: query, key and value <float>[H, D, d_h], and output <float>[H, d_h, D]."""
    query, key, value, output = (each.detach().double().cpu() for each in (query, key, value, output))
    return AttentionWeights(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, value @ output)
