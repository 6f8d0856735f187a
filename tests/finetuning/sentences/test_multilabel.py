"""Rows with any number of labels: reading, metrics next to scikit-learn's, and the loss as a mean over labels."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetuning.sentences.test_criterion import criterion_of, logged, outputs
from finetuning.sentences.test_inference import given
from sklearn import metrics as sklearn_metrics

from fairseq_maelm.finetuning.doubtful_results import doubt_about, report_on_classes
from fairseq_maelm.finetuning.sentences.inference import read_rows
from fairseq_maelm.finetuning.sentences.kind import SentenceSettings
from fairseq_maelm.finetuning.sentences.prepare import prepare_sentences
from fairseq_maelm.finetuning.tables import Columns, read_table
from fairseq_maelm.models.labels import Sets, from_json

TABLE = "text,tags\na house,b; a\na door,\na wall,a;\na roof,c\n"
RECORDS = [{"t": "a house", "y": ["b", 3]}, {"t": "a door", "y": []}, {"t": "a wall", "y": ["3"]}]


def test_cells_and_lists_are_sets(tmp_path: Path) -> None:
    table, records = tmp_path / "t.csv", tmp_path / "t.jsonl"
    table.write_text(TABLE)
    records.write_text("".join(f"{json.dumps(each)}\n" for each in RECORDS))
    columns = Columns(text="text", label="tags")
    found = [each.label for each in read_table(table, columns, label_separator=";")]
    assert found == [("b", "a"), (), ("a",), ("c",)]
    found = [each.label for each in read_table(records, Columns(text="t", label="y"), label_separator="")]
    assert found == [("b", "3"), (), ("3",)]
    with pytest.raises(ValueError, match="the field 'y' is .*, not text"):
        list(read_table(records, Columns(text="t", label="y")))


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['a', 'b c']", ("a", "b c")),
        ("""["it's", 'say \\'"x"\\'']""", ("it's", "say '\"x\"'")),
        ("['a' 'b']", ("a", "b")),
        ("[3, 17]", ("3", "17")),
        ("[]", ()),
        ("[x]", "[x]"),
        ("[3.0, -17]", ("3", "-17")),
    ],
)
@pytest.mark.parametrize("separator", ["", ";"])
def test_lists_that_pandas_has_written_are_sets(cell: str, labels: Any, separator: str, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(f"a house\t{cell}\n")
    (row,) = read_table(tmp_path / "t.tsv", Columns(text="0", label="1"), label_separator=separator)
    assert row.label == ((labels,) if separator and isinstance(labels, str) else labels)


@pytest.mark.parametrize("cell", ["['a', b]", "['a', None]", "array(['a', 'b'], dtype=object)"])
def test_a_list_that_cannot_be_read_is_no_label(cell: str, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(f"a house\t{cell}\n")
    with pytest.raises(ValueError, match=r"t.tsv:1: .* cannot be read as a list: put each label in quotes"):
        list(read_table(tmp_path / "t.tsv", Columns(text="0", label="1"), label_separator=""))


@pytest.mark.parametrize(
    "cell", ["[0, 1, 1]", "[0. 1. 1.]", "[False, True, False]", [0, 1, 1], [True, False, True], [1, 0]]
)
def test_a_row_of_flags_is_no_set_of_names(cell: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"t": "a house", "y": cell}) + "\n")
    with pytest.raises(
        ValueError, match=r"t.jsonl:1 has \d labels that are all 0 or 1: if each stands for a label, write a"
    ):
        list(read_table(tmp_path / "t.jsonl", Columns(text="t", label="y"), label_separator=""))


def test_the_folder_stores_sets_and_counts_labels(vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "hidden.csv").write_text("text,tags\na house,\na door,-1\n")
    settings = SentenceSettings(
        text="text", label="tags", label_separator=";", train=tmp_path / "t.csv", valid=tmp_path / "t.csv",
        test=tmp_path / "hidden.csv",
    )  # fmt: skip
    manifest = prepare_sentences(settings, vocabulary, tmp_path / "task")
    assert (manifest["labels"], manifest["label_separator"]) == (["a", "b", "c"], ";")
    assert manifest["splits"]["train"] == {"examples": 4, "labels": {"a": 2, "b": 1, "c": 1}}
    assert manifest["splits"]["test"] == {"examples": 2}
    targets = from_json(manifest).read(tmp_path / "task" / "label" / "train")
    assert targets is not None and targets.tolist() == [
        [True, True, False],
        [False] * 3,
        [True, False, False],
        [False, False, True],
    ]
    records = tmp_path / "t.jsonl"
    records.write_text("".join(f"{json.dumps(each)}\n" for each in [*RECORDS, {"t": "a roof", "y": "b"}]))
    settings = SentenceSettings(text="t", label="y", train=records, valid=records)
    manifest = prepare_sentences(settings, vocabulary, tmp_path / "lists")
    assert manifest["splits"]["valid"] == {"examples": 4, "labels": {"3": 2, "b": 2}}
    assert manifest["label_separator"] == ";" and "label_separator" not in manifest["settings"]


@pytest.mark.parametrize("seed", [0, 2])
def test_metrics_are_scikit_learns(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gold, predicted = generator.random((2, 30, 5)) < 0.2 * seed
    gold[:, 4] = predicted[:, 4] = False  # a label that does not occur
    f1 = [sklearn_metrics.f1_score(gold, predicted, average=each, zero_division=0) for each in ("micro", "macro")]
    expected = [*f1, sklearn_metrics.accuracy_score(gold, predicted)]
    assert [*Sets(tuple("abcde")).measure(gold, predicted).values()] == pytest.approx([100 * each for each in expected])


def test_loss_and_metrics_of_validation_do_not_depend_on_batches() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(7, 11), torch.rand(7, 11) < 0.3
    labels = Sets(tuple("abcdefghijk"))
    criterion = criterion_of(labels)
    batches = [[[0, 1, 2, 3, 4, 5, 6]]], [[[5, 0], [6]], [[1, 2, 3, 4]]]
    for updates in batches:
        found = logged(criterion, *(outputs(criterion, scores, targets, update) for update in updates))
        mean = torch.nn.functional.binary_cross_entropy_with_logits(scores, targets.float()).item()
        assert found["loss"] == pytest.approx(mean / math.log(2), abs=1e-4)
        expected = labels.measure(targets.numpy(), (scores >= 0).numpy())
        assert {name: found[name] for name in labels.metrics} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "texts", "labels"),
    [
        ("x\ta;b\ny\t\n", [("x",), ("y",)], [("a", "b"), ()]),
        ("x\t['a', 'b']\ny\t[]\n", [("x",), ("y",)], [("a", "b"), ()]),
        ("x\ta;b\ny\ta;c;a\n", [("x", "a;b"), ("y", "a;c;a")], [None, None]),
        ("x\t\ny\t\n", [("x", ""), ("y", "")], [None, None]),
    ],
)
def test_a_last_column_of_sets_is_found(text: str, texts: list[Any], labels: list[Any], tmp_path: Path) -> None:
    rows = read_rows(given(tmp_path / "t.tsv", text), Sets(("a", "b"), separator=";"))
    assert ([row.texts for row in rows], [row.label for row in rows]) == (texts, labels)


def test_the_report_and_the_doubt() -> None:
    report = report_on_classes([("a", "b"), ()], [("a",), ("c",)])
    assert [line.split()[:4] for line in report.splitlines()[2:5]] == [
        ["a", "1.000", "1.000", "1.000"], ["b", "0.000", "0.000", "0.000"], ["c", "0.000", "0.000", "0.000"],
    ]  # fmt: skip
    metrics = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 50.0}
    assert "micro_f1 is 0.0, as for a model that has learned nothing" in str(doubt_about(metrics, [("a",), ()] * 18))
    assert doubt_about({"micro_f1": 1.0, "macro_f1": 1.0, "subset_accuracy": 50.0}, [("a",), ()]) is None
