"""The files in a folder of ``maelm prepare retrieval``."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fairseq_maelm.lines import numbered_lines

NEGATIVES = "train.negatives.npy"


def identifiers_file(folder: Path, texts: str) -> Path:
    """Return the file of the ids of "documents" or "queries", one per line, in the order of their rows."""
    return folder / f"{texts}.ids"


def judgments_file(folder: Path, split: str) -> Path:
    """Return the file of a split's judgments, sorted <int64>[n, 3]: query row, document row, score."""
    return folder / f"{split}.judgments.npy"


def read_identifiers(path: Path) -> list[str]:
    """Read ids, one per line."""
    return [line for _, line in numbered_lines(path)]


def write_identifiers(path: Path, identifiers: Iterable[str]) -> None:
    """Write ids, one per line."""
    path.write_text("".join(f"{identifier}\n" for identifier in identifiers), encoding="utf-8", newline="\n")


def group_relevant(judgments: np.ndarray) -> dict[int, np.ndarray]:
    """Group judgments <int64>[n, 3]: row of each judged query -> <int64>[P] rows of its relevant documents.

    Both are in ascending order. A score above zero means relevant; a query may have no relevant documents.
    """
    groups = _group(judgments[np.argsort(judgments[:, 1])])
    return {query: group[group[:, 2] > 0, 1] for query, group in groups.items()}


def group_pairs(pairs: np.ndarray) -> dict[int, np.ndarray]:
    """Group <int64>[n, 2] query rows and document rows: query row -> <int64>[documents], in the given order."""
    return {query: group[:, 1] for query, group in _group(pairs).items()}


def _group(table: np.ndarray) -> dict[int, np.ndarray]:
    """Group the rows of a table by their first column; keep their order within a group."""
    ordered = table[np.argsort(table[:, 0], kind="stable")]
    keys, starts = np.unique(ordered[:, 0], return_index=True)
    return dict(zip(keys.tolist(), np.split(ordered, starts[1:])))
