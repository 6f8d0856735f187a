"""Tables of texts and labels in all formats, and errors with file and line."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.finetuning.tables import Columns, read_table

PAIRS = [("one, two", "three", "good"), ('say "so"', "four", "bad")]


def rows(path: Path, *columns: Any, texts: Any = None, **options: Any) -> list[tuple[Any, ...]]:
    """Texts and label of each row."""
    return [(*example.texts, example.label) for example in read_table(path, Columns(*columns), texts, **options)]


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode("utf-8")))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("t.tsv", 'one, two\tthree\tgood\nsay "so"\tfour\tbad\n', ()),
        ("t.tsv.gz", 'one, two\tthree\tgood\r\nsay "so"\tfour\tbad\r\n', ()),
        ("t.csv", '"one, two",three,good\n"say ""so""",four,bad\n', ()),
        ("t.csv", '\ufefflabel,a,b\ngood,"one, two",three\nbad,"say ""so""",four\n', ("a", "b", "label")),
        ("t.csv", 'good,"one,\n two",three\nbad,"say ""so""",four\n', ("1", "2", "0")),
        ("t.tsv", 'x\tone, two\tthree\tgood\nx\tsay "so"\tfour\tbad\n', ("1", "2", "-1")),
        (
            "t.jsonl",
            "".join(json.dumps({"s": a, "t": b, "y": c, "n": 1}) + "\n\n" for a, b, c in PAIRS),
            ("s", "t", "y"),
        ),
        (
            "t.json",
            json.dumps([{"s": a, "t": b, "y": c, "n": 1} for a, b, c in PAIRS], indent=1),
            ("s", "t", "y"),
        ),
        ("t.csv", 'one, two;three;good\n"say ""so""";four;bad\n', (None, None, None, ";")),
        ("t.csv", 'a\tb\tlabel\none, two\tthree\tgood\n"say ""so"""\tfour\tbad\n\n', ("a", "b", "label", "\t")),
    ],
    ids=[
        *("tabs", "gzip", "commas", "names", "places and a line break", "last place", "json lines", "json list"),
        *("semicolons", "tabs in csv"),
    ],
)
def test_one_table_in_all_formats(name: str, text: str, columns: tuple[str, ...], tmp_path: Path) -> None:
    assert rows(write(tmp_path / name, text), *columns) == PAIRS


def test_labels_may_be_absent(tmp_path: Path) -> None:
    one = write(tmp_path / "one.tsv", "a\nb\n")
    assert rows(one, texts=1) == [("a", None), ("b", None)]
    two = write(tmp_path / "two.tsv", "a\tb\nc\td\n")
    assert rows(two) == rows(two, texts=1) == [("a", "b"), ("c", "d")]
    assert rows(two, texts=2) == [("a", "b", None), ("c", "d", None)]
    for name, text in (("t.csv", "id,s\n1,a\n"), ("t.jsonl", '{"s": "a"}\n')):
        table = write(tmp_path / name, text)
        assert rows(table, "s", None, "label", label_optional=True) == [("a", None)]
        with pytest.raises(CorpusError, match=f"{name}:1 has no (column|field) 'label', only ('id', )?'s'"):
            rows(table, "s", None, "label")
    assert rows(write(tmp_path / "j.jsonl", '{"s": "a", "label": 3.5}\n'), "s", None, "label") == [("a", "3.5")]


def test_a_text_of_a_pair_may_be_empty_where_that_is_allowed(tmp_path: Path) -> None:
    table = write(tmp_path / "t.tsv", "\tb\t0\n")
    assert [example.texts for example in read_table(table, texts=2, complete=any)] == [("", "b")]
    with pytest.raises(CorpusError, match="t.tsv:1 has an empty sentence"):
        list(read_table(write(tmp_path / "t.tsv", " \t\t0\n"), texts=2, complete=any))


def test_empty_lines_are_rows_only_in_a_table_of_one_column(tmp_path: Path) -> None:
    one = write(tmp_path / "one.tsv", "a\n\nb\n")
    assert rows(one, texts=1, complete=bool) == [("a", None), ("", None), ("b", None)]
    assert rows(one, "0", complete=bool) == [("a", None), ("", None), ("b", None)]
    two = write(tmp_path / "two.tsv", "a\tb\n\nc\td\n")
    assert rows(two) == rows(two, "0", None, "1") == [("a", "b"), ("c", "d")]
    assert rows(two, "0") == [("a", None), ("c", None)]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("t.tsv", "a\n", (), "t.tsv:1 has 1 column: without --text and --label it must be 'text TAB label'"),
        ("t.tsv", "a\tgood\nb\n", (), "t.tsv:2 has 1 column, but the first line has 2"),
        ("t.tsv", "a\tgood\n \tbad\n", (), "t.tsv:2 has an empty sentence"),
        ("t.tsv", "a\tgood\nb\t \n", (), "t.tsv:2 has no label"),
        ("t.tsv", "a\tgood\n", (None, None, "1"), "must be named too: give --text"),
        ("t.csv", "s,label\n", ("s", None, "label"), "t.csv has no row below its header"),
        ("t.csv", 's,label\n"a,b\n', ("s", None, "label"), "t.csv:2 is not a row of separated values"),
        ("t.csv", "s\tt\na\tb\n", (), "label'. If '\\t' separates its columns, give --delimiter tab"),
        ("t.tsv", "a\tgood\n", ("7", None, "1"), "t.tsv:1 has no column 7 (counted from 0)"),
        ("t.json", '[{"s": "a"}, 3]', ("s",), "t.json: item 2 of the list is int, not an object"),
        ("t.json", '[{"s": "a"}', ("s",), "t.json is not JSON"),
        ("t.jsonl", '{"s": "a"}\n', (), "t.jsonl:1 is JSON: name its fields, as in --text s"),
        ("t.jsonl", '{"s": "a"}\n{"t": "b"}\n', ("s",), "t.jsonl:2 has no field 's'"),
        ("t.jsonl", '{"s": ["a"]}\n', ("s",), "t.jsonl:1: the field 's' is [\"a\"], not text"),
    ],
)
def test_bad_tables_are_explained(name: str, text: str, columns: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=re.escape(message)):
        rows(write(tmp_path / name, text), *columns)


def test_lines_that_are_no_records_are_invalid_rows(tmp_path: Path) -> None:
    path, invalid = tmp_path / "a.jsonl", list[str]()
    path.write_text('{"t": "a", "y": 1}\n{"t": \n{"t": "b", "y": 2}\n')
    found = list(read_table(path, Columns("t", None, "y"), invalid=invalid))
    assert [each.texts for each in found] == [("a",), ("b",)]
    assert len(invalid) == 1 and invalid[0].startswith(f"{path}:2: the record is not JSON")
