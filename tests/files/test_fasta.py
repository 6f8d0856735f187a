"""FASTA: one record is one document, one sentence or one row, in every command that reads text."""

import argparse
import gzip
import io
import sys
from pathlib import Path

import pytest

from fairseq_maelm.cli import main
from fairseq_maelm.corpus import read_documents
from fairseq_maelm.corpus.reading import SourceReader, cleaned_lines, find_sources
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.fasta import Record, fasta_records
from fairseq_maelm.files.kinds import FASTA, TABLES, TEXT, kind_of
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.finetuning.sentences.inference import read_rows
from fairseq_maelm.finetuning.tables import ColumnsWithId, read_table
from fairseq_maelm.models.labels import Classes
from fairseq_maelm.options import CommandParser, add_settings

KEPT = Path(__file__).parents[1] / "end_to_end" / "kept"
SEQUENCES = {"sp|P1|ONE": "MKTAYIAKQRQISFVKSHFS" * 7, "two": "ACDEFGHIKL-MN.", "": "MKV" * 50}
CONTENT = "\n" + "".join(
    f">{name}{' of a mouse' * bool(name)}\n" + "\n".join(text[at : at + 60] for at in range(0, len(text), 60)) + "*\n\n"
    for name, text in SEQUENCES.items()
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "proteins.fasta"
    file.write_text(CONTENT, encoding="utf-8")
    return file


def test_records(path: Path) -> None:
    lines = CONTENT.split("\n")
    headers = [number for number, line in enumerate(lines, 1) if line.startswith(">")]
    expected = [Record(line, *each) for line, each in zip(headers, SEQUENCES.items())]
    assert list(fasta_records(numbered_lines(path), path)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">a\nMKV\n>b\n\n>c\nMKV\n", ":3: the record 'b' has no sequence"),
        (">a\nMKV\n>b\n*\n", ":3: the record 'b' has no sequence"),
    ],
)
def test_records_without_a_sequence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.fa"
    path.write_text(text)
    with pytest.raises(CorpusError, match=message):
        list(read_documents(path))
    invalid: list[str] = []
    assert [record.name for record in fasta_records(numbered_lines(path), path, invalid)] in (["a", "c"], ["a"])
    assert len(invalid) == 1


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.faa", CONTENT, FASTA),
        ("a.FNA", ">x\nac\n", FASTA),
        ("a.fas", "", FASTA),
        ("a.txt", CONTENT, FASTA),
        ("stdin", ">x\r\nacgtACGTNN\r\nacgt\r\n", FASTA),
        ("a.txt", ">x\nACGTACGT\n", TEXT),
        ("a.fa", "متن فارسی\n", TEXT),
        ("mail.txt", "> Shall we meet?\nTomorrow\n", TEXT),
        ("mail.txt", ">Shall we meet?\nTomorrowafternoon\n>When?\nNOW\n", TEXT),
        ("mail.txt", ">Shall we meet?\n>Yes\nAGREEDCOMPLETELY\n", TEXT),
        ("mail.txt", ">Shall we meet?\nAGREEDCOMPLETELY\nBest wishes\n", TEXT),
    ],
)
def test_which_files_are_fasta(name: str, text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert kind_of(tmp_path / name, TABLES) == kind
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert kind_of(tmp_path / f"{name}.gz", TABLES) == kind


@pytest.mark.parametrize("segment_bytes", [1, 70, 10**6])
def test_a_record_is_a_document_in_segments_of_any_size(path: Path, segment_bytes: int) -> None:
    assert list(read_documents(path)) == [[sequence] for sequence in SEQUENCES.values()]
    segments = list(SourceReader(find_sources([path])[0], segment_bytes))
    assert len(segments) == 1 if segment_bytes == 10**6 else len(segments) > 1
    texts = [text for segment in segments for text in cleaned_lines(segment)]
    assert [text for text in texts if text] == list(SEQUENCES.values())
    assert texts.count("") >= len(SEQUENCES)


def test_score_keeps_the_names(tmp_path: Path) -> None:
    path = tmp_path / "in.fasta"
    path.write_text(">a of b\nevery sai\nlor\n>b\nold\n")
    known = ["--checkpoint", KEPT, "--vocabulary", KEPT / "data", "--device", "cpu", "--output", tmp_path / "out"]
    main(["score", *map(str, [path, *known])])
    header, *rows = (tmp_path / "out" / "scores.tsv").read_text().splitlines()
    cells = [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]
    found = [(each["place"], each["text"], each["name"]) for each in cells]
    assert found == [("in.fasta:1", "everysailor", "a"), ("in.fasta:4", "old", "b")]


def test_predict_reads_a_table_of_names_and_sequences(path: Path) -> None:
    parser = CommandParser()
    add_settings(parser, ColumnsWithId)
    args = parser.parse_args([])
    args.input = path
    rows = read_rows(args, Classes(("x", "y")))
    assert [(row.texts, row.id, row.label) for row in rows] == [
        ((text,), name, None) for name, text in SEQUENCES.items()
    ]
    (row, *_) = read_table(path, ColumnsWithId(text="sequence"))
    assert row.id is None


def test_predict_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    prompt = '{"name": "own", "template": "*cls**sent_0**mask**sep+*", "label_words": {"a": "the", "b": "every"}}'
    (tmp_path / "prompt.json").write_text(prompt)
    text = ">one of them\nEVERYSAILOR\nTAKES\n>two\nOLDHARBOUR\n"
    monkeypatch.setattr(sys, "stdin", argparse.Namespace(buffer=io.BytesIO(text.encode())))
    known = [
        "--checkpoint",
        KEPT,
        "--vocabulary",
        KEPT / "data",
        "--device",
        "cpu",
        "--prompt",
        tmp_path / "prompt.json",
    ]
    main(["predict", "-", *map(str, known)])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split("\t")[-2:] == ["id", "text"]
    assert [row.split("\t")[-2:] for row in rows] == [["one", "EVERYSAILORTAKES"], ["two", "OLDHARBOUR"]]
