"""Tables in Markdown, and how sure a difference in them is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap
from tabulate import tabulate


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown that can be read as it is; a | in a cell, which would end it, becomes a /."""
    cells = [[" ".join(cell.replace("|", "/").split()) for cell in row] for row in (header, *rows)]
    return tabulate(cells[1:], cells[0], tablefmt="github", disable_numparse=True, stralign="left")


class Difference(NamedTuple):
    """The difference of two medians, and the ends of its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def difference_of_medians(scores: Sequence[float], others: Sequence[float]) -> Difference | None:
    """Compare two medians over seeds by the bootstrap: 9,999 draws of as many seeds from either side, with repetition.

    The percentile interval of so few seeds is rough, and narrower than the truth: one that touches 0 shows no
    difference, one that does not is a hint. None with fewer than three seeds on a side, where it would say nothing.
    """
    if min(len(scores), len(others)) < 3:
        return None

    def statistic(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(first, axis=axis) - np.median(second, axis=axis)

    samples = (np.asarray(scores, float), np.asarray(others, float))
    found = bootstrap(samples, statistic, vectorized=True, method="percentile", random_state=np.random.default_rng(0))
    low, high = found.confidence_interval
    return Difference(float(statistic(*samples)), float(low), float(high))
