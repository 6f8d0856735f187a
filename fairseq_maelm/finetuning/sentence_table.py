"""Tables of texts and labels: tabs or commas between columns, or JSON lines."""

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.arguments import option
from fairseq_maelm.files import CorpusError
from fairseq_maelm.lines import columns_in, numbered_lines, parse_record
from fairseq_maelm.text.cleaning import clean_text

_COMPRESSED = (".gz", ".xz")
_FORMS = "a name in the table's header, or a number from 0 for a table without a header"
_COLUMNS = "columns of the table, by default texts first and the label last"


@dataclass(frozen=True)
class Columns:
    """Columns of texts and labels, by name or by number; a table has a header if any of them is a name."""

    text: str | None = option(None, help=f"column of the text: {_FORMS}", metavar="COLUMN", group=_COLUMNS)
    text_pair: str | None = option(None, help="column of the second text of pairs", metavar="COLUMN", group=_COLUMNS)
    label: str | None = option(None, help="column of the label", metavar="COLUMN", group=_COLUMNS)

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The columns of text, second text and label; None for each one that is not given."""
        return (self.text, self.text_pair, self.label)

    @property
    def named(self) -> bool:
        """True if a column is given by name."""
        return any(each is not None and _number(each) is None for each in self.keys)


class Example(NamedTuple):
    """A row of a table."""

    place: str  # file and line, for error messages
    texts: tuple[str, ...]  # one or two, cleaned
    label: str | None  # as written; None in a table without labels


def read_table(
    path: Path, columns: Columns = Columns(), texts: int | None = None, allow_empty: bool = False
) -> Iterator[Example]:
    """Yield the rows of a table.

    Args:
        path: a .tsv, .csv or .jsonl file, plain or with .gz or .xz appended; any other name is read as .tsv.
        columns: the columns of texts and labels.
        texts: number of texts of a row, if known: a table with only that many columns has no labels. Otherwise a table
            has labels if its columns are not given.
        allow_empty: accept an empty text in a pair.

    Raises:
        CorpusError: a row is not an example; the message names file and line.
    """
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    cells = first[1]
    if isinstance(cells, dict) and columns.text is None:
        raise CorpusError(f"{path} is JSON: name its fields, as in --text {next(iter(cells), 'text')} --label ...")
    chosen = _choose(columns, cells, texts, first[0])
    if isinstance(cells, dict) or not columns.named:
        rows = itertools.chain([first], rows)
    for place, row in rows:
        example = _example(place, row, chosen)
        if not (any(example.texts) if allow_empty else all(example.texts)):
            raise CorpusError(f"{place} has an empty sentence")
        yield example


class _Chosen(NamedTuple):
    """Keys of the cells to read from a row, and the number of cells that rows must have: None for any number."""

    texts: tuple[Any, ...]
    label: Any
    width: int | None


def _number(column: str) -> int | None:
    return int(column) if column.removeprefix("-").isdecimal() else None


def _choose(columns: Columns, first: Any, texts: int | None, place: str) -> _Chosen:
    if columns.text is None:
        if any(columns.keys):
            raise CorpusError("--text-pair and --label name columns: give --text too")
        count = len(first) if len(first) == texts else len(first) - 1
        if count not in (1, 2):
            raise CorpusError(
                f"{place} has {columns_in(first)}: without --text and --label it must be 'text TAB label' or 'text "
                "TAB text TAB label'"
            )
        return _Chosen(tuple(range(count)), None if count == len(first) else count, len(first))
    label: Any
    if isinstance(first, dict):
        keys, label = list[Any](columns.keys[:2]), columns.label
        width, has_label = None, label in first
    elif columns.named:
        names = {name.strip(): number for number, name in enumerate(first)}
        *keys, label = (_find_column(each, names, place, each == columns.label) for each in columns.keys)
        width, has_label = len(first), True
    else:
        *keys, label = (None if each is None else _number(each) for each in columns.keys)
        width, has_label = None, label is not None and label < len(first)
    return _Chosen(tuple(key for key in keys if key is not None), label if has_label else None, width)


def _find_column(column: str | None, names: dict[str, int], place: str, optional: bool) -> int | None:
    """Return the number of a column; None for an optional one that the header lacks."""
    if column is None:
        return None
    found = names.get(column, _number(column))
    if found is None and not optional:
        raise CorpusError(f"{place} has no column {column!r}, only {', '.join(map(repr, names))}")
    return found


def _example(place: str, row: Any, chosen: _Chosen) -> Example:
    if chosen.width is not None and len(row) != chosen.width:
        raise CorpusError(f"{place} has {columns_in(row)}, but the first line has {chosen.width}")
    texts = tuple(clean_text(_cell(row, key, place)) for key in chosen.texts)
    if chosen.label is None:
        return Example(place, texts, None)
    label = _cell(row, chosen.label, place, label=True).strip()
    if not label:
        raise CorpusError(f"{place} has no label")
    return Example(place, texts, label)


def _cell(row: Any, key: Any, place: str, label: bool = False) -> str:
    try:
        cell = row[key]
    except (KeyError, IndexError) as error:
        what = f"field {key!r}" if isinstance(row, dict) else f"column {key} (counted from 0)"
        raise CorpusError(f"{place} has no {what}") from error
    if isinstance(cell, str):
        return cell
    if label and isinstance(cell, (int, float)):
        return json.dumps(cell)
    raise CorpusError(f"{place}: the field {key!r} is {json.dumps(cell)[:60]}, not text")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place of each row, as "file:line", and its cells or its JSON fields."""
    suffix = (path.with_suffix("") if path.suffix in _COMPRESSED else path).suffix.lower()
    if suffix == ".csv":
        yield from _comma_separated(path)
        return
    is_json = suffix in (".jsonl", ".ndjson")
    for number, line in numbered_lines(path, blank=not is_json):
        place = f"{path}:{number}"
        yield place, parse_record(line, place) if is_json else line.split("\t")


def _comma_separated(path: Path) -> Iterator[tuple[str, Sequence[str]]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    number = 1
    try:
        for row in reader:
            if row:
                yield f"{path}:{number}", row
            number = reader.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}:{number} is not a row of comma-separated values: {error}") from error
