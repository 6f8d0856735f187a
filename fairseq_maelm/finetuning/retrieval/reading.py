"""Readers of BEIR's files (Thakur et al., 2021), of TREC's run files and of hard negatives, which check each line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fairseq_maelm.lines import columns_in, numbered_lines, parse_record, text_field
from fairseq_maelm.text.cleaning import clean_text

HEADER = ("query-id", "corpus-id", "score")
_RUN_COLUMNS = 6


class TextRecord(NamedTuple):
    """A query or a document: its id, its cleaned text (title, space, text), and "file:line" for messages."""

    identifier: str
    text: str
    place: str


class Pair(NamedTuple):
    """The ids of a query and a document in a line of a file; the score is a relevance or a similarity."""

    query: str
    document: str
    place: str
    score: Any = None


def read_texts(path: Path, allow_empty: bool = False) -> Iterator[TextRecord]:
    """Yield the records of a .jsonl file with ``_id``, ``text`` and optionally ``title``, or the lines of another file.

    The ids of lines are their numbers, from 1; blank lines are skipped.
    """
    seen: set[str] = set()
    is_json = path.name.lower().removesuffix(".gz").removesuffix(".xz").endswith((".jsonl", ".ndjson"))
    for number, line in numbered_lines(path, blank=False):
        place = f"{path}:{number}"
        identifier, text = _fields(line, place) if is_json else (str(number), clean_text(line))
        if identifier in seen:
            raise ValueError(f"{place}: the id {identifier!r} is not unique: an earlier line has it too")
        if not text and not allow_empty:
            raise ValueError(f"{place}: the text of {identifier!r} is empty: remove it, or give --allow-empty")
        seen.add(identifier)
        yield TextRecord(identifier, text, place)


def _fields(line: str, place: str) -> tuple[str, str]:
    record = parse_record(line, place)
    if "_id" not in record or "text" not in record:
        raise ValueError(f"{place}: a record needs the fields '_id' and 'text'")
    identifier = record["_id"]
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ValueError(f"{place}: the field '_id' is a {type(identifier).__name__}, not a string")
    if str(identifier).split() != [str(identifier)]:
        raise ValueError(f"{place}: the id {identifier!r} is empty or has white space, which run files do not allow")
    names = ("text",) if record.get("title") is None else ("title", "text")
    return str(identifier), clean_text(" ".join(text for name in names if (text := text_field(record, name, place))))


def _rows(path: Path, header: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line that is neither blank nor the header."""
    for number, line in numbered_lines(path, blank=False):
        cells = line.split()
        if number > 1 or tuple(map(str.lower, cells)) != header:
            yield f"{path}:{number}", cells


def read_judgments(path: Path) -> Iterator[Pair]:
    """Yield each judgment of a qrels file once; it has BEIR's three columns, with or without header, or TREC's four."""
    scores: dict[tuple[str, str], int] = {}
    for place, cells in _rows(path, HEADER):
        if len(cells) == 4:
            del cells[1]
        if len(cells) != 3:
            raise ValueError(
                f"{place}: {columns_in(cells)}: a line must be 'query-id TAB corpus-id TAB score', or TREC's 'query 0 "
                "document score'"
            )
        try:
            query, document, score = cells[0], cells[1], int(cells[2])
        except ValueError:
            raise ValueError(f"{place}: the score {cells[2]!r} is not a whole number") from None
        known = scores.get((query, document))
        if known is None:
            scores[query, document] = score
            yield Pair(query, document, place, score)
        elif known != score:
            raise ValueError(f"{place}: query {query!r} and document {document!r} already have the score {known}")


def rows_of(pair: Pair, rows: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Look up the rows of a pair's query and document; ``rows`` is "queries" or "documents" -> id -> row."""
    for kind, identifier in (("queries", pair.query), ("documents", pair.document)):
        if identifier not in rows[kind]:
            raise ValueError(f"{pair.place}: the id {identifier!r} is not in the {kind}")
    return rows["queries"][pair.query], rows["documents"][pair.document]


def write_results(stream: BinaryIO, query: str, found: Sequence[tuple[str, float]]) -> None:
    """Write the documents found for a query and their scores, the best first, to a run file."""
    for rank, (document, score) in enumerate(found, 1):
        # 9 digits are exact for single precision.
        stream.write(f"{query} Q0 {document} {rank} {score:.9g} maelm\n".encode())


def _read_run(path: Path) -> Iterator[Pair]:
    seen: set[tuple[str, str]] = set()
    for place, cells in _rows(path):
        if len(cells) != _RUN_COLUMNS:
            raise ValueError(f"{place}: {columns_in(cells)}: a line must be 'query Q0 document rank score tag'")
        query, _, document, _, text, _ = cells
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{place}: the score {text!r} is not a finite number")
        if (query, document) in seen:
            raise ValueError(f"{place}: query {query!r} has the document {document!r} twice")
        seen.add((query, document))
        yield Pair(query, document, place, score)


def load_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a run file of TREC with lines ``query Q0 document rank score tag``: query -> document -> score."""
    run: dict[str, dict[str, float]] = {}
    for found in _read_run(path):
        run.setdefault(found.query, {})[found.document] = found.score
    return run


def _read_candidates(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file of hard negatives, see ``read_negatives``, in the file's order."""
    _, first = next(_rows(path), ("", []))
    if not first:
        raise ValueError(f"{path} is empty")
    if len(first) == _RUN_COLUMNS:
        yield from _read_run(path)
        return
    for place, cells in _rows(path, HEADER[:2]):
        if len(cells) != 2:
            raise ValueError(
                f"{place}: {columns_in(cells)}: a line of hard negatives must be 'query-id TAB corpus-id', or have "
                "the six columns of a run file"
            )
        yield Pair(cells[0], cells[1], place)


def read_negatives(
    path: Path, rows: Mapping[str, Mapping[str, int]], relevant: Mapping[int, np.ndarray], per_query: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Choose hard negatives of the training queries.

    Args:
        path: a file with lines ``query-id TAB corpus-id``, or a run file.
        rows: "queries" or "documents" -> id -> row.
        relevant: row of each training query -> <int64>[P] rows of its relevant documents, which are skipped.
        per_query: number of negatives to take for each query, the first in the file.

    Returns:
        <int64>[n, 2] rows of query and document, sorted by query and then in the file's order; and the numbers of
        candidates that were taken, are relevant, or belong to other queries.
    """
    positives = {query: set(documents.tolist()) for query, documents in relevant.items()}
    taken: dict[int, dict[int, None]] = {query: {} for query in sorted(positives)}
    known = others = 0
    for candidate in _read_candidates(path):
        query, document = rows_of(candidate, rows)
        if query not in positives:
            others += 1
        elif document in positives[query]:
            known += 1
        elif len(taken[query]) < per_query:
            taken[query][document] = None
    pairs = [(query, document) for query, documents in taken.items() for document in documents]
    facts = {"taken": len(pairs), "relevant": known, "of_other_queries": others}
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), facts
