"""Run files of TREC: what a search found, ``query Q0 document rank score tag`` a line."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Sequence

from fairseq_maelm.finetuning.retrieval.beir import Pair
from fairseq_maelm.lines import numbered_lines

COLUMNS = 6


def write_results(stream: BinaryIO, query: str, documents: Sequence[str], scores: Sequence[float], tag: str) -> None:
    """Write what was found for one query, the best first; scores keep all digits of single precision."""
    for rank, (document, score) in enumerate(zip(documents, scores), 1):
        stream.write(f"{query} Q0 {document} {rank} {score:.9g} {tag}\n".encode())


def read_run(path: Path) -> Iterator[Pair]:
    """Yield the lines of a run file."""
    seen: set[tuple[str, str]] = set()
    for number, line in numbered_lines(path, blank=False):
        place, cells = f"{path}:{number}", line.split()
        if len(cells) != COLUMNS:
            raise ValueError(f"{place}: {len(cells)} columns; a line is 'query Q0 document rank score tag'")
        try:
            score = float(cells[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{place}: the score {cells[4]!r} is not a finite number")
        if (cells[0], cells[2]) in seen:
            raise ValueError(f"{place}: query {cells[0]!r} has the document {cells[2]!r} twice")
        seen.add((cells[0], cells[2]))
        yield Pair(cells[0], cells[2], place, score)


def load_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a run file whole: query -> document -> score. Errors as in ``read_run``."""
    run: dict[str, dict[str, float]] = {}
    for found in read_run(path):
        run.setdefault(found.query, {})[found.document] = found.score
    return run
