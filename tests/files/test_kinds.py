"""The kind of a file, by its name and its first lines, and files that no reader takes."""

import argparse
import bz2
import gzip
from pathlib import Path

import pytest

from fairseq_maelm.corpus import CorpusError, read_documents
from fairseq_maelm.files.conll import Layout, layout_of
from fairseq_maelm.files.kinds import kind_of
from fairseq_maelm.finetuning.tables import Columns, read_table

KINDS = ("text", "documents", "jsonl", "json", "tsv", "csv", "conllu")
CONLLU = b"# text = a b\n1\ta\ta\tNOUN\t_\t_\t0\troot\t_\tX=y\n2\tb\tb\tVERB\t_\t_\t1\tdep\t_\t_\n\n"
RECORD = b'{"id": 1, "text": "a text"}\n'
ARTICLES = b'<doc id="1" url="u" title="A">\nA\n\nFirst.\n</doc>\n\n<doc id="2">\nB\nSecond.\n\nThird.\n</doc>\n'


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.conllu.gz", gzip.compress(CONLLU, mtime=0), "conllu"),
        ("A.CONLLU", CONLLU, "conllu"),
        ("a.conll", CONLLU, "conllu"),
        ("a.txt", CONLLU, "conllu"),
        ("b.conll", b"a\tNOUN\nb\tVERB\n", "text"),
        ("A.CSV.GZ", gzip.compress(b"a,b\n", mtime=0), "csv"),
        ("a.tsv.bz2", bz2.compress(b"a\tb\n"), "tsv"),
        ("wiki_00", RECORD, "jsonl"),
        ("wiki_01", b'{"text": "' + b"long " * 9999, "jsonl"),
        ("wiki_02", ARTICLES, "documents"),
        ("b.txt", b"\xef\xbb\xbf\n" + RECORD, "jsonl"),
        ("a", b'{\n  "data": []\n}\n', "json"),
        ("b", b'[{"text": "a"}]', "json"),
        ("c.txt", b"[a] text, {too}\n{x: y}\n", "text"),
        ("d.txt", b"", "text"),
        ("e.txt", b"{} is the empty set.\n", "text"),
    ],
)
def test_kinds(name: str, content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert kind_of(path, KINDS) == kind
    with pytest.raises(CorpusError, match=f"{path.name} is "):
        kind_of(path, ())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "Hello\n".encode("utf-16-le"), "holds the character NUL as often as UTF-16"),
        ("c.txt", b"one\rtwo\r\rthree\r", "ends its lines with a carriage return only: convert it"),
        ("a.parquet", b"PAR1", "a table in a format that is not read"),
        ("a.jsonl", b'{"text": NaN}\n', r"a.jsonl:1: .*NaN is not a JSON number"),
        ("b.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n', r"b.jsonl:2: .*the key 'text' is given twice"),
        ("d.txt", CONLLU, "d.txt is CoNLL-U"),
    ],
)
def test_what_is_no_text_is_not_read_as_text(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        list(read_documents(path))


def test_documents_of_wikiextractor(tmp_path: Path) -> None:
    for name, content in (("wiki_00", ARTICLES), ("wiki_01", RECORD * 2), ("one.txt", b"a\rb\nc\n")):
        (tmp_path / name).write_bytes(content)
    assert list(read_documents(tmp_path / "wiki_00")) == [["A", "First."], ["B", "Second.", "Third."]]
    assert list(read_documents(tmp_path / "wiki_01")) == [["a text"]] * 2
    assert list(read_documents(tmp_path / "one.txt")) == [["a b", "c"]]


def test_numbers_of_json_are_one_class(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b'{"t": "a", "l": 1}\n{"t": "b", "l": 1.0}\n{"t": "c", "l": 0.5}\n')
    assert [each.label for each in read_table(path, Columns("t", None, "l"))] == ["1", "1", "0.5"]


def test_layouts(tmp_path: Path) -> None:
    none = argparse.Namespace(format=None, column=None, word_column=None, comment_prefix=None)
    treebank, words, records = (tmp_path / name for name in ("A.CONLLU.GZ", "words", "ner.txt"))
    for path, content in ((treebank, gzip.compress(CONLLU)), (words, b"a\tB-X\n"), (records, RECORD)):
        path.write_bytes(content)
    conllu, columns = Layout("conllu", "UPOS"), Layout("conll", "3")
    assert layout_of(none, treebank) == layout_of(none, treebank, columns) == conllu
    assert layout_of(none, words) == Layout("conll", "-1") and layout_of(none, words, columns) is columns
    for default in (None, columns):
        with pytest.raises(CorpusError, match="is JSON lines: write each word and its label on a line"):
            layout_of(none, records, default)
