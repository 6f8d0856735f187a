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
from fairseq_maelm.lines import numbered_lines, parse_record
from fairseq_maelm.text.cleaning import clean_text

_COMPRESSED = (".gz", ".xz")


_PLACES = "its name, which the first line then holds, or its place from 0 on"
_COLUMNS = "columns of the table, by default texts first and the label last"


@dataclass(frozen=True)
class Columns:
    """Names or places of the columns of texts and labels; a table without any has no line of names."""

    text: str | None = option(None, help=f"column of the text: {_PLACES}", metavar="COLUMN", group=_COLUMNS)
    text_pair: str | None = option(None, help="column of the second text of pairs", metavar="COLUMN", group=_COLUMNS)
    label: str | None = option(None, help="column of the label", metavar="COLUMN", group=_COLUMNS)

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The three columns; None for what is not given."""
        return (self.text, self.text_pair, self.label)

    @property
    def named(self) -> bool:
        """Whether columns are given by name."""
        return any(each is not None and _place(each) is None for each in self.keys)


class Example(NamedTuple):
    """A row of a table.

    Attributes:
        place: file and line, for error messages.
        texts: one or two, cleaned.
        label: as written; None in a table without labels.
    """

    place: str
    texts: tuple[str, ...]
    label: str | None


def read_table(
    path: Path, columns: Columns = Columns(), texts: int | None = None, allow_empty: bool = False
) -> Iterator[Example]:
    """Yield the rows of a table.

    Args:
        path: .tsv, .csv or .jsonl, perhaps with .gz behind it; of any other name as .tsv.
        columns: of texts and labels.
        texts: number of texts of a row, where it is known: a table with as many columns has no labels. Without it a
            table whose columns are not given has labels.
        allow_empty: let one text of a pair be empty.

    Raises:
        CorpusError: names file and line of anything that is not an example.
    """
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    cells = first[1]
    if isinstance(cells, dict) and columns.text is None:
        raise CorpusError(f"{path} holds JSON: name its fields, as in --text {next(iter(cells), 'text')} --label ...")
    chosen = _chosen(columns, cells, texts, first[0])
    if isinstance(cells, dict) or not columns.named:
        rows = itertools.chain([first], rows)
    for place, row in rows:
        example = _example(place, row, chosen)
        if not (any(example.texts) if allow_empty else all(example.texts)):
            raise CorpusError(f"{place} has an empty sentence")
        yield example


class _Chosen(NamedTuple):
    """Keys of a row's cells, and the number of cells, None where any is right."""

    texts: tuple[Any, ...]
    label: Any
    width: int | None


def _place(column: str) -> int | None:
    return int(column) if column.removeprefix("-").isdecimal() else None


def _chosen(columns: Columns, first: Any, texts: int | None, place: str) -> _Chosen:
    if columns.text is None:
        if any(columns.keys):
            raise CorpusError("--text-pair and --label say columns: give --text too")
        count = len(first) if len(first) == texts else len(first) - 1
        if count not in (1, 2):
            raise CorpusError(
                f"{place} has {len(first)} columns: without --text and --label it must be 'text TAB label' or 'text "
                "TAB text TAB label'"
            )
        return _Chosen(tuple(range(count)), None if count == len(first) else count, len(first))
    if columns.named and not isinstance(first, dict):
        names = {name.strip(): number for number, name in enumerate(first)}
        keys = [_number_of(each, names, place, each == columns.label) for each in columns.keys]
        return _Chosen(tuple(key for key in keys[:2] if key is not None), keys[2], len(first))
    own: list[Any] = [each if isinstance(first, dict) or each is None else _place(each) for each in columns.keys]
    absent = own[2] is not None and (own[2] not in first if isinstance(first, dict) else own[2] >= len(first))
    return _Chosen(tuple(key for key in own[:2] if key is not None), None if absent else own[2], None)


def _number_of(column: str | None, names: dict[str, int], place: str, optional: bool) -> int | None:
    """Return the place of a column; a table may lack that of the label."""
    if column is None:
        return None
    found = names.get(column, _place(column))
    if found is None and not optional:
        raise CorpusError(f"{place} has no column {column!r}, but {', '.join(map(repr, names))}")
    return found


def _example(place: str, row: Any, chosen: _Chosen) -> Example:
    if chosen.width is not None and len(row) != chosen.width:
        raise CorpusError(f"{place} has {len(row)} columns, and the first line {chosen.width}")
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
    raise CorpusError(f"{place}: the field {key!r} holds {json.dumps(cell)[:60]}, which is not text")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield file and line of each row with its cells, or with its fields."""
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
