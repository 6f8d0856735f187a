"""Markdown tables, and confidence intervals for differences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap, t
from tabulate import tabulate


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned Markdown table; "|" in a cell becomes "/", since "|" would end the cell."""
    cells = [[" ".join(cell.replace("|", "/").split()) for cell in row] for row in (header, *rows)]
    return tabulate(cells[1:], cells[0], tablefmt="github", disable_numparse=True, stralign="left")


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean, its 95 % interval by Student's t, and the number of values; no interval for a single value."""
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return {"mean": mean, "low": None, "high": None, "count": count}
    half = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": count}


def with_interval(form: str, middle: float, low: float | None, high: float | None) -> str:
    """Return "MIDDLE (LOW to HIGH)" in a number format such as ".1f", or the middle alone without an interval."""
    return f"{middle:{form}}" if low is None else f"{middle:{form}} ({low:{form}} to {high:{form}})"


def difference_of_medians(scores: Sequence[float], others: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the difference of two medians over seeds, and the ends of its bootstrap interval from 9,999 resamples.

    A percentile interval from few seeds is rough and too narrow: even if it excludes 0, this is only a hint of a
    difference. With fewer than three seeds for one of the medians, return None.
    """
    if min(len(scores), len(others)) < 3:
        return None

    def statistic(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(first, axis=axis) - np.median(second, axis=axis)

    samples = (np.asarray(scores, float), np.asarray(others, float))
    found = bootstrap(samples, statistic, vectorized=True, method="percentile", random_state=np.random.default_rng(0))
    low, high = found.confidence_interval
    return float(statistic(*samples)), float(low), float(high)
