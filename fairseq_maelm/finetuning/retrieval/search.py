"""Exact search: the documents with the highest scores among all, found block by block in constant memory."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest of each row <float>[Q, n], falling, and their columns <int64>[Q, k]; equal ones by column."""
    k = min(k, scores.shape[1])
    values, columns = scores.topk(k, dim=1)
    # topk chooses freely among scores that equal the lowest one taken: such rows are sorted as a whole.
    lowest = values[:, -1:]
    undecided = (scores == lowest).sum(dim=1) > (values == lowest).sum(dim=1)
    if bool(undecided.any()):
        whole = scores[undecided].sort(dim=1, descending=True, stable=True)
        values[undecided], columns[undecided] = whole.values[:, :k], whole.indices[:, :k]
    return _ordered(values, columns)


def _ordered(values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by falling value, equal ones by row; both [Q, n]."""
    rows, by_row = rows.sort(dim=1)
    values, by_value = values.gather(1, by_row).sort(dim=1, descending=True, stable=True)
    return values, rows.gather(1, by_value)


def merge(values: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest scores <float>[Q, n] of documents, given by their rows <int64>[Q, n], each document once.

    Equal scores are ordered by row; fewer documents than k leave -inf at the end.
    """
    rows, by_row = rows.sort(dim=1)
    values = values.gather(1, by_row)
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    values, rows = _ordered(values.masked_fill(repeated, float("-inf")), rows)
    return values[:, :k], rows[:, :k]


def search(queries: Tensor, blocks: Iterable[tuple[int, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Find each query's best documents by the product of embeddings.

    Args:
        queries: <float>[Q, D].
        blocks: the row of the first document of each block, and <float>[n, D]; in the order of the rows.
        k: at least 1; more than there are documents gives all.

    Returns:
        scores <float32>[Q, k] falling and rows <int64>[Q, k] of the documents; equal scores by rising row.
    """
    queries = queries.float()
    values = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first, documents in blocks:
        scores = queries @ documents.to(queries.device).float().T
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("embeddings hold numbers that are not finite: embed the texts again with this checkpoint")
        new_values, columns = best(scores, k)
        values, rows = _ordered(torch.cat([values, new_values], dim=1), torch.cat([rows, columns + first], dim=1))
        values, rows = values[:, :k], rows[:, :k]
    return values, rows


def blocks_of(embeddings: np.ndarray, size: int) -> Iterator[tuple[int, Tensor]]:
    """Read <float>[N, D], also one mapped from a file, ``size`` rows at a time; see ``search``."""
    for first in range(0, len(embeddings), size):
        yield first, torch.from_numpy(np.array(embeddings[first : first + size]))
