"""Hard negatives: documents that look relevant to a training query and are not, given or mined by a search."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fairseq_maelm.finetuning.retrieval.beir import HEADER, Pair, rows_of
from fairseq_maelm.finetuning.retrieval.runs import COLUMNS, read_run
from fairseq_maelm.lines import numbered_lines


def read_candidates(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file in its order.

    It holds ``query-id TAB corpus-id`` a line, with or without a header; or it is a run file, as a search over the
    corpus writes it, whose documents are candidates in the order of their ranks.
    """
    first = next(numbered_lines(path, blank=False), None)
    if first is None:
        raise ValueError(f"{path} is empty")
    if len(first[1].split()) == COLUMNS:
        yield from read_run(path)
        return
    for number, line in numbered_lines(path, blank=False):
        cells = line.split()
        if number == 1 and tuple(cells) == HEADER[:2]:
            continue
        if len(cells) != 2:
            raise ValueError(
                f"{path}:{number}: {len(cells)} columns; hard negatives are 'query-id TAB corpus-id' a line, or the "
                "six columns of a run file"
            )
        yield Pair(cells[0], cells[1], f"{path}:{number}")


def read_negatives(
    path: Path, rows: Mapping[str, Mapping[str, int]], relevant: Mapping[int, np.ndarray], per_query: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Choose hard negatives of the training queries.

    Args:
        path: see ``read_candidates``.
        rows: "queries" and "documents" -> id -> row.
        relevant: row of each training query -> <int64>[P] rows of its relevant documents, which are no negatives.
        per_query: the first so many of each query are taken.

    Returns:
        <int64>[n, 2] rows of query and document, sorted by query and otherwise in the file's order; and how many
        candidates were taken, were known to be relevant, and belong to other queries.
    """
    if per_query < 1:
        raise ValueError(f"--negatives-per-query must be at least 1 and is {per_query}")
    positives = {query: set(documents.tolist()) for query, documents in relevant.items()}
    taken: dict[int, dict[int, None]] = {}
    facts = {"taken": 0, "relevant": 0, "of_other_queries": 0}
    for candidate in read_candidates(path):
        query, document = rows_of(candidate, rows)
        own = taken.setdefault(query, {}) if query in positives else None
        if own is None:
            facts["of_other_queries"] += 1
        elif document in positives[query]:
            facts["relevant"] += 1
        elif len(own) < per_query:
            own[document] = None
    pairs = [(query, document) for query in sorted(taken) for document in taken[query]]
    facts["taken"] = len(pairs)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), facts
