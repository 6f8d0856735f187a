"""Exact search for the documents with the highest scores, block by block in constant memory."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest of each row <float>[Q, n], descending, and their columns <int64>[Q, k]; ties by column."""
    k = min(k, scores.shape[1])
    values, columns = scores.topk(k, dim=1)
    # topk breaks ties with the lowest chosen score arbitrarily, so rows with such ties are sorted completely.
    lowest = values[:, -1:]
    undecided = (scores == lowest).sum(dim=1) > (values == lowest).sum(dim=1)
    if bool(undecided.any()):
        whole = scores[undecided].sort(dim=1, descending=True, stable=True)
        values[undecided], columns[undecided] = whole.values[:, :k], whole.indices[:, :k]
    return _ordered(values, columns)


def _ordered(values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by descending value, ties by row; both [Q, n]."""
    rows, by_row = rows.sort(dim=1)
    values, by_value = values.gather(1, by_row).sort(dim=1, descending=True, stable=True)
    return values, rows.gather(1, by_value)


def merge(values: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest scores <float>[Q, n] of documents, given by their rows <int64>[Q, n], without duplicates.

    Ties are ordered by row. With fewer documents than k, the last scores are -inf.
    """
    rows, by_row = rows.sort(dim=1)
    values = values.gather(1, by_row)
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    values, rows = _ordered(values.masked_fill(repeated, float("-inf")), rows)
    return values[:, :k], rows[:, :k]


def search(queries: Tensor, blocks: Iterable[tuple[int, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Find each query's best documents by the dot product of embeddings.

    Args:
        queries: <float>[Q, D].
        blocks: the row of the first document of each block, and the block <float>[n, D]; in the order of the rows.
        k: maximum number of documents per query.

    Returns:
        scores <float32>[Q, k], descending, and rows <int64>[Q, k] of the documents; ties in the order of the rows.
    """
    queries = queries.float()
    values = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first, documents in blocks:
        scores = queries @ documents.to(queries.device).float().T
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("embeddings or their products are not finite: embed the texts again")
        new_values, columns = best(scores, k)
        values, rows = _ordered(torch.cat([values, new_values], dim=1), torch.cat([rows, columns + first], dim=1))
        values, rows = values[:, :k], rows[:, :k]
    return values, rows


def blocks_of(embeddings: np.ndarray, size: int) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of ``size`` rows of <float>[N, D], which may be mapped from a file; see ``search``."""
    for first in range(0, len(embeddings), size):
        yield first, torch.from_numpy(np.array(embeddings[first : first + size]))
