"""The rows of a table that `maelm predict` treats as labeled."""

from argparse import Namespace
from pathlib import Path

import pytest

from fairseq_maelm.finetuning.sentences.predict_input import _rows, _targets

NAMES = ["bad", "good"]


@pytest.mark.parametrize(
    ("text", "regression", "texts", "labels"),
    [
        ("a\nb\n", False, [("a",), ("b",)], None),
        ("a\tgood\nb\tbad\n", False, [("a",), ("b",)], [1, 0]),
        ("a\tgood\nb\tugly\n", False, [("a", "good"), ("b", "ugly")], None),
        ("a\tb\tgood\n", False, [("a", "b")], [1]),
        ("a\t1.5\nb\t2\n", True, [("a",), ("b",)], [1.5, 2.0]),
        ("a\tb\nc\td\n", True, [("a", "b"), ("c", "d")], None),
    ],
)
def test_a_last_column_of_known_labels_is_one_of_labels(
    text: str, regression: bool, texts: list[tuple[str, ...]], labels: list[float] | None, tmp_path: Path
) -> None:
    (tmp_path / "t.tsv").write_text(text)
    rows = _rows(Namespace(input=tmp_path / "t.tsv", text=None, text_pair=None, label=None), NAMES, regression)
    assert [row.texts for row in rows] == texts
    targets = _targets(rows, NAMES, regression)
    assert (None if targets is None else targets.tolist()) == labels


def test_headers_and_unknown_labels_are_refused(tmp_path: Path) -> None:
    args = Namespace(input=tmp_path / "t.csv", text=None, text_pair=None, label=None)
    args.input.write_text("review,stars\na,good\nb,bad\n")
    with pytest.raises(ValueError, match=r"t.csv:1 looks like a header: name the columns with --text and --label"):
        _rows(args, NAMES, False)
    args.text, args.label = "review", "stars"
    assert [row.label for row in _rows(args, NAMES, False)] == ["good", "bad"]
    args.input.write_text("review,stars\na,ugly\n")
    with pytest.raises(ValueError, match=r"t.csv:2 has the label 'ugly', which the checkpoint does not know"):
        _targets(_rows(args, NAMES, False), NAMES, False)
