"""What the folder of ``maelm prepare retrieval`` holds, and reading it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fairseq_maelm.lines import numbered_lines

NEGATIVES = "train.negatives.npy"


def identifiers_file(folder: Path, texts: str) -> Path:
    """Return the file of the ids of "documents" or "queries", one a line, in the order of their rows."""
    return folder / f"{texts}.ids"


def judgments_file(folder: Path, split: str) -> Path:
    """Return the file of <int64>[n, 3], query row, document row and score, sorted."""
    return folder / f"{split}.judgments.npy"


def read_identifiers(path: Path) -> list[str]:
    """Read ids, one a line."""
    return [line for _, line in numbered_lines(path)]


def write_identifiers(path: Path, identifiers: Iterable[str]) -> None:
    """Write ids, one a line."""
    path.write_text("".join(f"{identifier}\n" for identifier in identifiers), encoding="utf-8", newline="\n")


def group_relevant(judgments: np.ndarray) -> dict[int, np.ndarray]:
    """Group judgments <int64>[n, 3]: row of each judged query -> <int64>[P] rows of its relevant documents.

    Both ascend; scores above zero are relevant, and a query may have none.
    """
    ordered = judgments[np.lexsort((judgments[:, 1], judgments[:, 0]))]
    queries, starts = np.unique(ordered[:, 0], return_index=True)
    groups = np.split(ordered, starts[1:])
    return {int(query): group[group[:, 2] > 0, 1] for query, group in zip(queries, groups)}


def group_pairs(pairs: np.ndarray) -> dict[int, np.ndarray]:
    """Group <int64>[n, 2] query rows and document rows: query row -> <int64>[documents], in the given order."""
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")]
    queries, starts = np.unique(ordered[:, 0], return_index=True)
    return {int(query): group[:, 1] for query, group in zip(queries, np.split(ordered, starts[1:]))}
