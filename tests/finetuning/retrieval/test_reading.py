"""Readers of BEIR's files, run files and hard negatives, and their errors with file and line."""

import gzip
import io
import json

import numpy as np
import pytest

from fairseq_maelm.finetuning.retrieval.reading import (
    load_run,
    read_judgments,
    read_negatives,
    read_texts,
    rows_of,
    write_results,
)

ROWS = {"queries": {"q1": 0, "q2": 1, "q3": 2}, "documents": {"a": 0, "b": 1, "c": 2}}


def write(path, text):
    path.write_bytes(text.encode("latin-1"))
    return path


def test_records_of_all_kinds(tmp_path):
    lines = [
        {"_id": "a", "title": "A  title", "text": "and\ttext"},
        {"_id": 5, "title": None, "text": "no title", "metadata": {}},
        {"_id": "c", "title": "only a title", "text": ""},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        opened = gzip.open if name.endswith(".gz") else open
        with opened(tmp_path / name, "wt", encoding="utf-8") as stream:
            stream.write(text + "\n\n")
        records = [(record.identifier, record.text) for record in read_texts(tmp_path / name)]
        assert records == [("a", "A title and text"), ("5", "no title"), ("c", "only a title")]


def test_plain_lines_have_their_numbers_as_ids(tmp_path):
    records = read_texts(write(tmp_path / "texts.txt", "first\n\n third \n"))
    assert [(record.identifier, record.text) for record in records] == [("1", "first"), ("3", "third")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: the record is not JSON"),
        ('["a"]', ":2: not a JSON record, but list"),
        ('{"_id": "b"}', ":2: a record needs the fields '_id' and 'text'"),
        ('{"_id": "a", "text": "again"}', ":2: the id 'a' is not unique"),
        ('{"_id": "b", "text": " "}', ":2: the text of 'b' is empty"),
        ('{"_id": "b", "text": 5}', ":2: the field 'text' is 5"),
        ('{"_id": "b", "title": 5, "text": "x"}', ":2: the field 'title' is 5"),
        ('{"_id": true, "text": "x"}', ":2: the field '_id' is a bool, not a string"),
        ('{"_id": "b c", "text": "x"}', ":2: the id 'b c' is empty or has white space"),
        ('{"_id": "", "text": "x"}', ":2: the id '' is empty or has white space"),
        ('{"_id": "b", "text": "\\ud800"}', ":2: the field 'text' holds half of a surrogate pair"),
        ('{"_id": "b", "text": "\xff"}', ":2: not valid UTF-8"),
    ],
)
def test_wrong_records_are_named(line, message, tmp_path):
    path = write(tmp_path / "corpus.jsonl", '{"_id": "a", "text": "x"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"corpus\.jsonl" + message.replace("(", r"\(")):
        list(read_texts(path))


def test_empty_texts_can_be_kept(tmp_path):
    path = write(tmp_path / "corpus.jsonl", '{"_id": "b", "text": ""}\n')
    assert [record.text for record in read_texts(path, allow_empty=True)] == [""]


def test_a_damaged_file_is_named(tmp_path):
    whole = gzip.compress(b'{"_id": "a", "text": "x"}\n' * 100)
    (tmp_path / "corpus.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or cut short"):
        list(read_texts(tmp_path / "corpus.jsonl.gz", allow_empty=True))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        list(read_texts(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    "text",
    ["query-id\tcorpus-id\tscore\nq1\ta\t2\nq1\tb\t0\n", "q1 0 a 2\nq1 0 b 0\nq1 0 a 2\n", "q1\ta\t2\nq1\tb\t0\n"],
)
def test_judgments_of_beir_and_trec(text, tmp_path):
    judgments = read_judgments(write(tmp_path / "qrels.tsv", text))
    assert [(judgment.query, judgment.document, judgment.score) for judgment in judgments] == [
        ("q1", "a", 2),
        ("q1", "b", 0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\ta", ":2: 2 columns"),
        ("q1\ta\t1.5", ":2: the score '1.5' is not a whole number"),
        ("q1\ta\tyes", ":2: the score 'yes' is not a whole number"),
        ("q1\ta\t3", ":2: query 'q1' and document 'a' already have the score 2"),
        ("q9\ta\t1", ":2: the id 'q9' is not in the queries"),
        ("q1\tz\t1", ":2: the id 'z' is not in the documents"),
    ],
)
def test_wrong_judgments_are_named(line, message, tmp_path):
    path = write(tmp_path / "train.tsv", f"q1\ta\t2\n{line}\n")
    with pytest.raises(ValueError, match=r"train\.tsv" + message):
        for judgment in read_judgments(path):
            rows_of(judgment, ROWS)


def test_runs_are_read_as_written(tmp_path):
    scores = [float(np.float32(1) / np.float32(3)), -1e-30]
    stream = io.BytesIO()
    write_results(stream, "q1", list(zip("ba", scores)))
    (tmp_path / "run").write_bytes(stream.getvalue())
    run = load_run(tmp_path / "run")
    assert {query: list(found) for query, found in run.items()} == {"q1": ["b", "a"]}
    assert [np.float32(score) for score in run["q1"].values()] == [np.float32(score) for score in scores]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 b 2", ":2: 4 columns"),
        ("q1 Q0 b 2 high t", ":2: the score 'high' is not a finite number"),
        ("q1 Q0 b 2 nan t", ":2: the score 'nan' is not a finite number"),
        ("q1 Q0 a 2 0.1 t", ":2: query 'q1' has the document 'a' twice"),
    ],
)
def test_wrong_runs_are_named(line, message, tmp_path):
    with pytest.raises(ValueError, match="run" + message):
        load_run(write(tmp_path / "run", f"q1 Q0 a 1 0.5 t\n{line}\n"))


# Training queries are q1, for which a is relevant, and q3 without anything.
RELEVANT = {0: np.array([0]), 2: np.array([], dtype=np.int64)}


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\nq3\ta\nq1\tc\nq1\ta\nq1\tb\nq2\ta\n",
        "q3 Q0 a 1 9 t\nq1 Q0 c 1 8 t\nq1 Q0 a 2 7 t\nq1 Q0 b 3 6 t\nq2 Q0 a 1 5 t\n",
    ],
    ids=["pairs", "run"],
)
def test_hard_negatives_given_and_mined(text, tmp_path):
    path = write(tmp_path / "negatives", text)
    pairs, facts = read_negatives(path, ROWS, RELEVANT, 5)
    assert pairs.tolist() == [[0, 2], [0, 1], [2, 0]], "in the file's order"
    assert facts == {"taken": 3, "relevant": 1, "of_other_queries": 1}
    assert read_negatives(path, ROWS, RELEVANT, 1)[0].tolist() == [[0, 2], [2, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1\tb\nq9\ta\n", ":2: the id 'q9' is not in the queries"),
        ("q1\tz\n", ":1: the id 'z' is not in the documents"),
        ("q1\tb\t1\n", ":1: 3 columns"),
        ("", " is empty"),
    ],
)
def test_wrong_hard_negatives_are_named(text, message, tmp_path):
    with pytest.raises(ValueError, match="negatives" + message):
        read_negatives(write(tmp_path / "negatives", text), ROWS, RELEVANT, 5)
