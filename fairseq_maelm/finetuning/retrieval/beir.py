"""Reading data in BEIR layout (Thakur et al., 2021): corpus.jsonl, queries.jsonl and qrels/*.tsv, each line checked."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.lines import numbered_lines, parse_record, text_field
from fairseq_maelm.text.cleaning import clean_text

HEADER = ("query-id", "corpus-id", "score")
_JSON_LINES = (".jsonl", ".ndjson")


class TextRecord(NamedTuple):
    """A query or a document.

    Attributes:
        identifier: unique in its file.
        text: cleaned; of a document with a title the title, a space and the text, as BEIR joins them.
        place: file and line, for messages.
    """

    identifier: str
    text: str
    place: str


class Pair(NamedTuple):
    """A query and a document by their ids, as a line of a file names them.

    Attributes:
        query: its id.
        document: its id.
        place: file and line, for messages.
        score: in a qrels file how relevant the document is, above zero; in a run file the search's, higher is better.
    """

    query: str
    document: str
    place: str
    score: Any = None


def is_json_lines(path: Path) -> bool:
    """Whether a file holds records of JSON, by its name, which may end in .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower() in _JSON_LINES


def read_texts(path: Path, allow_empty: bool = False) -> Iterator[TextRecord]:
    """Yield the records of a .jsonl file with ``_id``, ``text`` and perhaps ``title``, or the lines of any other file.

    Lines of plain text have their numbers, from 1, as ids; blank ones are left out.

    Args:
        path: the file; a name that ends in .gz is decompressed.
        allow_empty: let texts be empty; their embeddings are that of ``<s></s>``.
    """
    seen: set[str] = set()
    json_lines = is_json_lines(path)
    for number, line in numbered_lines(path, blank=False):
        place = f"{path}:{number}"
        if json_lines:
            identifier, text = _record(line, place)
        else:
            identifier, text = str(number), clean_text(line)
        if identifier in seen:
            raise ValueError(f"{place}: the id {identifier!r} has come before; ids must be unique")
        if not text and not allow_empty:
            raise ValueError(
                f"{place}: the text of {identifier!r} is empty; remove it, or give --allow-empty to keep such texts"
            )
        seen.add(identifier)
        yield TextRecord(identifier, text, place)


def _record(line: str, place: str) -> tuple[str, str]:
    record = parse_record(line, place)
    if "_id" not in record or "text" not in record:
        raise ValueError(f"{place}: a record needs the fields '_id' and 'text'")
    identifier = record["_id"]
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ValueError(f"{place}: the field '_id' holds {type(identifier).__name__}, not a string")
    names = ("text",) if record.get("title") is None else ("title", "text")
    joined = " ".join(text for name in names if (text := text_field(record, name, place)))
    return check_identifier(str(identifier), place), clean_text(joined)


def check_identifier(identifier: str, place: str) -> str:
    """Refuse names of texts that run files cannot hold: their columns are separated by white space."""
    if not identifier or identifier.split() != [identifier]:
        raise ValueError(f"{place}: the id {identifier!r} is empty or holds white space, which run files cannot hold")
    return identifier


def whole_number(text: str, place: str) -> int:
    """Read a relevance score."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{place}: the score {text!r} is not a whole number") from None


def read_judgments(path: Path) -> Iterator[Pair]:
    """Yield the judgments of a qrels file: BEIR's three columns, or TREC's four; a header is passed over.

    Pairs that occur again with the same score are yielded once.
    """
    scores: dict[tuple[str, str], int] = {}
    for number, line in numbered_lines(path, blank=False):
        place, cells = f"{path}:{number}", line.split()
        if number == 1 and tuple(cell.lower() for cell in cells) == HEADER:
            continue
        if len(cells) == 4:
            del cells[1]
        if len(cells) != 3:
            raise ValueError(
                f"{place}: {len(cells)} columns; a line is 'query-id TAB corpus-id TAB score', or TREC's 'query 0 "
                "document score'"
            )
        pair, score = (cells[0], cells[1]), whole_number(cells[2], place)
        known = scores.get(pair)
        if known is not None and known != score:
            raise ValueError(f"{place}: query {pair[0]!r} and document {pair[1]!r} have the score {known} above")
        if known is None:
            scores[pair] = score
            yield Pair(*pair, place, score)


def rows_of(pair: Pair, rows: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
    """Look up the rows of a query and a document in "queries" and "documents" -> id -> row."""
    for kind, identifier in (("queries", pair.query), ("documents", pair.document)):
        if identifier not in rows[kind]:
            raise ValueError(f"{pair.place}: the id {identifier!r} is none of the {kind}")
    return rows["queries"][pair.query], rows["documents"][pair.document]
