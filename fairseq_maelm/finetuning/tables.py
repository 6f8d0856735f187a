"""The reader for all tables of texts and labels: separated columns, JSON lines, a JSON list of objects, or FASTA."""

import argparse
import ast
import csv
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files.atomic import CorpusError, parse_json
from fairseq_maelm.files.fasta import fasta_records
from fairseq_maelm.files.kinds import CSV, FASTA, JSON, JSON_LINES, TABLES, kind_of
from fairseq_maelm.files.lines import columns_in, numbered_lines, parse_record
from fairseq_maelm.options import option
from fairseq_maelm.text.cleaning import clean_text

Row = tuple[str, Any]  # a row's place, as "file:line", and its cells or its JSON fields


class _FastaRow(dict[str, str]):
    """The name and the sequence of a record of FASTA, which need no choice of columns."""


_DELIMITERS = {"tab": "\t", "\\t": "\t"}
# A label of a list in a cell: in quotation marks, or a number.
_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+\.?\d*|True|False)"""
_COMMA = r"\s*,\s*|\s+"
# The entries of rows with one number for each label of the table.
_FLAGS = {"0", "1", "0.", "1.", "0.0", "1.0", "true", "false", "True", "False"}
_LIKELY_DELIMITERS = ";\t,|"
_MOST_SHOWN = 300
_FORMS = "a name in the table's header, or a number from 0 for a table without a header"
_COLUMNS = "columns of the table, by default texts first and the label last"

# Usual names of columns without digits and punctuation, so that "sentence1", "gold_label" and "#1 String" are covered.
_OF_TEXTS = """
answer body comment content context document form hypothesis message passage premise query question review sentence
sentences string text texts title token tokens tweet utterance word words
"""
_OF_LABELS = """
category chunk chunktag class classes deprel entity feats gold goldlabel intent isduplicate label labels ner nertag
nertags pos postag postags quality rating score sentiment similarity tag tags target topic upos xpos y
"""
_NAMES_OF_TEXTS, _NAMES_OF_LABELS = frozenset(_OF_TEXTS.split()), frozenset(_OF_LABELS.split())


def delimiter(text: str) -> str:
    """Convert an option's value to the character that separates columns."""
    character = _DELIMITERS.get(text.lower(), text)
    if len(character) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a single character, such as ';', or the word tab")
    return character


@dataclass(frozen=True)
class Columns:
    """Columns of texts and labels, by name or by number; a table has a header if any of them is a name."""

    text: str | None = option(None, help=f"column of the text: {_FORMS}", metavar="COLUMN", group=_COLUMNS)
    text_pair: str | None = option(None, help="column of the second text of pairs", metavar="COLUMN", group=_COLUMNS)
    label: str | None = option(None, help="column of the label", metavar="COLUMN", group=_COLUMNS)
    delimiter: str | None = option(
        None, help="character between columns, such as ';', or the word tab (default: comma in .csv files, otherwise "
        "tab)",
        metavar="CHARACTER", type=delimiter, group=_COLUMNS,
    )  # fmt: skip

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The columns of text, second text, label and id; None for each one that is not given."""
        return (self.text, self.text_pair, self.label, getattr(self, "id", None))

    @property
    def named(self) -> bool:
        """True if a column is given by name."""
        return any(each is not None and _number(each) is None for each in self.keys)


@dataclass(frozen=True)
class ColumnsWithId(Columns):
    """Columns of texts and labels, and a column of ids, which are copied to the output."""

    id: str | None = option(
        None, help="column of ids, which are copied to the output", metavar="COLUMN", group=_COLUMNS
    )


class Example(NamedTuple):
    """A row of a table."""

    place: str  # file and line, for error messages
    texts: tuple[str, ...]  # one or two, cleaned
    label: str | tuple[str, ...] | None = None  # as written, or a tuple of labels; None in a table without labels
    id: str | None = None  # as written; None without a column of ids


def read_table(
    path: Path,
    columns: Columns = Columns(),
    texts: int | None = None,
    label_optional: bool = False,
    complete: Callable[[Iterable[str]], bool] = all,
    rows: Iterable[Row] | None = None,
    invalid: list[str] | None = None,
    label_separator: str | None = None,
) -> Iterator[Example]:
    """Yield the examples of a .tsv, .csv, .jsonl, .json or FASTA file, plain or compressed; any other is .tsv or JSON.

    A row has ``texts`` texts, None for any number. Without given columns, a table of exactly this many columns has no
    labels, and any other has them. With ``label_optional`` the label column may be missing, and empty labels are None.
    ``complete`` tells whether a row's texts are acceptable; by default, none may be empty. ``rows`` replace the file's.
    ``label_separator`` ("" for lists in JSON only) separates labels, which become a tuple; None is for one label.

    Messages about rows that are no examples, with file and line, are added to ``invalid``; without it, the first is
    raised as a CorpusError.
    """
    rows = iter(table_rows(path, columns.delimiter, invalid) if rows is None else rows)
    first = next(rows, None)
    if first is None:
        raise CorpusError(f"{path} is empty")
    cells = first[1]
    chosen = _choose(columns, cells, texts, first[0], label_optional)._replace(separator=label_separator)
    if isinstance(cells, dict) or not columns.named:
        rows = itertools.chain([first], rows)
    one_column = len(cells) == 1 and (chosen.width == 1 or {*chosen.texts, chosen.label, chosen.id} <= {0, None})
    example = None
    for place, row in rows:
        # An editor's empty line at the end of a file; in a table of one column it is an empty text.
        if row == [""] and not one_column:
            continue
        try:
            example = _example(place, row, chosen, label_optional, complete)
        except CorpusError as error:
            if invalid is None:
                raise
            invalid.append(str(error))
        else:
            yield example
    if example is None:
        raise CorpusError(f"{path} has no {'valid row' if invalid else 'row below its header'}")


class _Chosen(NamedTuple):
    """Keys of the cells to read from a row; the number of cells that rows must have, None for any; the separator."""

    texts: tuple[Any, ...]
    label: Any
    id: Any
    width: int | None
    separator: str | None = None  # the ``label_separator`` of ``read_table``


def _number(column: str) -> int | None:
    return int(column) if column.removeprefix("-").isdecimal() else None


def _choose(columns: Columns, first: Any, texts: int | None, place: str, label_optional: bool) -> _Chosen:
    keys = _keys_of(columns, first)
    if keys[0] is None:
        if isinstance(first, dict):
            name = next(iter(first), "text")
            raise CorpusError(f"{place} is JSON: name its fields, as in --text {name} --label ...")
        if any(keys):
            raise CorpusError(
                "with --text-pair, --label or --id, the column of the text must be named too: give --text"
            )
        count = len(first) if len(first) == texts else len(first) - 1
        if count not in (1, 2):
            raise CorpusError(
                f"{place} has {columns_in(first)}: without --text and --label it must be 'text TAB label' or 'text "
                f"TAB text TAB label'{_hint(first)}"
            )
        return _Chosen(tuple(range(count)), None if count == len(first) else count, None, len(first))
    found: list[Any]
    width = None
    if isinstance(first, dict):
        found = [None if key is None or key not in first else key for key in keys]
    elif columns.named:
        found, width = [_find_column(key, first, place) for key in keys], len(first)
    else:
        found = [None if key is None else _number(key) for key in keys]
        if found[2] is not None and label_optional and found[2] >= len(first):
            found[2] = None
    for key, option_key in zip(keys, found):
        if key is not None and option_key is None and not (label_optional and key == columns.label):
            missing = "no field" if isinstance(first, dict) else "no column"
            raise CorpusError(f"{place} has {missing} {key!r}, only {_listed(first)}{_hint(first)}")
    *texts_found, label, id_found = found
    return _Chosen(tuple(key for key in texts_found if key is not None), label, id_found, width)


def _keys_of(columns: Columns, first: Any) -> tuple[str | None, ...]:
    """Return the given columns; for FASTA, by default those of the sequence and of its name as an id."""
    keys = columns.keys
    if columns.text is not None or not isinstance(first, _FastaRow):
        return keys
    return ("sequence", *keys[1:3], keys[3] or "name" if isinstance(columns, ColumnsWithId) else None)


def _find_column(column: str | None, header: Sequence[str], place: str) -> int | None:
    """Return the index of a column, given by name or number; None if the header lacks the name."""
    if column is None:
        return None
    places = [number for number, name in enumerate(header) if name.strip() == column]
    if len(places) > 1:
        raise CorpusError(f"{place} has {len(places)} columns named {column!r}: rename all but one of them")
    return places[0] if places else _number(column)


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(map(repr, names))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _hint(cells: Any) -> str:
    """Return a hint for a row that was not split, or an empty string."""
    found = [each for each in _LIKELY_DELIMITERS if len(cells) == 1 and each in str(*cells)]
    if not found:
        return ""
    word = "tab" if found[0] == "\t" else f"'{found[0]}'"
    return f". If {found[0]!r} separates its columns, give --delimiter {word}"


def _example(
    place: str, row: Any, chosen: _Chosen, label_optional: bool, complete: Callable[[Iterable[str]], bool]
) -> Example:
    if chosen.width is not None and len(row) != chosen.width:
        raise CorpusError(f"{place} has {columns_in(row)}, but the first line has {chosen.width}")
    texts = tuple(clean_text(_cell(row, key, place)) for key in chosen.texts)
    if not complete(texts):
        raise CorpusError(f"{place} has an empty sentence")
    identity = None if chosen.id is None else _cell(row, chosen.id, place, or_number=True).strip()
    if chosen.label is None:
        return Example(place, texts, None, identity)
    if chosen.separator is not None and isinstance(row, dict) and isinstance(row.get(chosen.label), list):
        given = [_cell({chosen.label: each}, chosen.label, place, or_number=True) for each in row[chosen.label]]
        return Example(place, texts, _label_set(given, place), identity)
    label = _cell(row, chosen.label, place, or_number=True).strip()
    if chosen.separator is not None and (labels := labels_in(label, chosen.separator)) is not None:
        return Example(place, texts, _label_set(labels, place), identity)
    if chosen.separator == "" and re.fullmatch(r"(array\()?\[.*,.*\](, dtype=.*\))?", label):
        raise CorpusError(f"{place}: {label[:60]!r} cannot be read as a list: put each label in quotes, and omit None")
    if label == "" and not label_optional:
        raise CorpusError(f"{place} has no label")
    return Example(place, texts, label or None, identity)


def labels_in(cell: str, separator: str) -> list[str] | None:
    """Return the labels of a cell: those of a list as Python or numpy writes it, or those between separators.

    Return None if the separator is "" and the cell is no list.
    """
    inside = cell[1:-1] if cell.startswith("[") and cell.endswith("]") else ""
    if cell == "[]" or re.fullmatch(f"{_ITEM}(({_COMMA}){_ITEM})*", inside.strip()):
        items = re.findall(_ITEM, inside)
        return list(map(_spelled, items))
    return cell.split(separator) if separator else None


def _spelled(item: str) -> str:
    """Return an item of a list as a label: without quotes, and whole numbers without a decimal point."""
    if item[0] in "'\"":
        return str(ast.literal_eval(item))
    return str(int(float(item))) if re.fullmatch(r"-?\d+\.?0*", item) else item


def _label_set(given: Iterable[str], place: str) -> tuple[str, ...]:
    labels = Counter(label for each in given if (label := each.strip()))
    if labels.total() > 1 and labels.keys() <= _FLAGS:
        raise CorpusError(
            f"{place} has {labels.total()} labels that are all 0 or 1: if each stands for a label, write a list of the "
            "names of those with a 1"
        )
    for label in [label for label, count in labels.items() if count > 1][:1]:
        raise CorpusError(f"{place} has the label {label!r} twice: remove one of them")
    return tuple(labels)


def _cell(row: Any, key: Any, place: str, or_number: bool = False) -> str:
    try:
        cell = row[key]
    except (KeyError, IndexError) as error:
        what = f"field {key!r}" if isinstance(row, dict) else f"column {key} (counted from 0)"
        raise CorpusError(f"{place} has no {what}") from error
    if isinstance(cell, str):
        return cell
    if or_number and isinstance(cell, (int, float)):
        # 1 and 1.0 are the same number.
        return json.dumps(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)
    raise CorpusError(f"{place}: the field {key!r} is {json.dumps(cell)[:60]}, not text")


def table_rows(path: Path, separator: str | None = None, invalid: list[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a table; ``separator`` separates columns: by default a comma in .csv files, otherwise a tab.

    Quotation marks enclose cells in .csv files and with any separator except tab; elsewhere they are literal. Messages
    about lines that are not JSON records are added to ``invalid``; without it, the first is raised.
    """
    kind = kind_of(path, TABLES)
    if kind in (JSON, JSON_LINES):
        yield from _json_records(path, invalid)
    elif kind == FASTA:
        for record in fasta_records(numbered_lines(path), path, invalid):
            yield f"{path}:{record.line}", _FastaRow(name=record.name, sequence=record.sequence)
    elif kind == CSV or separator not in (None, "\t"):
        yield from _quoted_rows(path, separator or ",")
    else:
        for number, line in numbered_lines(path):
            yield f"{path}:{number}", line.split("\t")


def _json_records(path: Path, invalid: list[str] | None) -> Iterator[Row]:
    lines = numbered_lines(path, blank=False)
    first = next(lines, None)
    if first is None:
        return
    if not first[1].lstrip().startswith("["):
        for number, line in itertools.chain([first], lines):
            try:
                record = parse_record(line, f"{path}:{number}")
            except CorpusError as error:
                if invalid is None:
                    raise
                invalid.append(str(error))
            else:
                yield f"{path}:{number}", record
        return
    content = parse_json("\n".join([first[1], *(line for _, line in lines)]), path, strict=True)
    for number, record in enumerate(content, 1):
        if not isinstance(record, dict):
            raise CorpusError(f"{path}: item {number} of the list is {type(record).__name__}, not an object")
        yield f"{path}, item {number}", record


def _quoted_rows(path: Path, separator: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), delimiter=separator, strict=True)
    number = 1
    try:
        for row in reader:
            yield f"{path}:{number}", row or [""]
            number = reader.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}:{number} is not a row of separated values: {error}") from error


def header_reason(texts: Sequence[str], label: str, counts: Mapping[str, int]) -> str | None:
    """Return the reason why the first row of a table looks like a header, or None if it looks like an example.

    In a header all cells are usual column names, and the label is unique or contains "label"; or the label is unique,
    and every other label (at least two) occurs several times. ``texts`` are the row's other cells, ``counts`` the
    number of rows with each label, this row included.
    """
    alone, name = counts[label] == 1, _letters(label)
    # "pos" may be a class, but "label" on several lines comes from several tables that were joined.
    named = name in _NAMES_OF_LABELS and (alone or "label" in name)
    if named and all(_letters(text) in _NAMES_OF_TEXTS for text in texts):
        cells = ", ".join(repr(cell) for cell in (*texts, label))
        return f"its cells name columns ({cells})"
    others = [count for other, count in counts.items() if other != label]
    if alone and len(others) > 1 and min(others) > 1:
        return f"its label {label!r} is on this line only, but every other label is on several lines"
    return None


def refuse_header(place: str, cells: Any, certain: bool = False) -> None:
    """Raise a CorpusError if all cells of a table's first row are usual names of columns, or if ``certain``."""
    names = _NAMES_OF_TEXTS | _NAMES_OF_LABELS | {"id", "index"}
    if certain or (not isinstance(cells, dict) and all(_letters(cell) in names for cell in cells)):
        raise CorpusError(f"{place} looks like a header: name the columns with --text and --label, or remove the line")


def _letters(cell: str) -> str:
    return re.sub(r"[\W\d_]", "", cell).lower()
