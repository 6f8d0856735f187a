"""The rows of a table that `maelm predict` treats as labeled, its labels, its output, and the length of texts."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_maelm.finetuning.predicted import predict_rows
from fairseq_maelm.finetuning.sentences.inference import check_labels, read_rows
from fairseq_maelm.finetuning.sentences.prepare import label_dictionary
from fairseq_maelm.finetuning.tables import Example
from fairseq_maelm.models.classification import score_texts
from fairseq_maelm.models.labels import Classes, Numbers, Sets, sentence_labels
from fairseq_maelm.models.text_limits import TextLimits

NAMES = ("bad", "good")


def given(path: Path, text: str, **columns: str) -> Namespace:
    path.write_text(text)
    return Namespace(input=path, **{**dict.fromkeys(("text", "text_pair", "label", "id", "delimiter")), **columns})


@pytest.mark.parametrize(
    ("text", "labels", "texts", "found"),
    [
        ("a\n\nb\n", NAMES, [("a",), ("",), ("b",)], [None, None, None]),
        ("a\tgood\nb\tbad\n", NAMES, [("a",), ("b",)], ["good", "bad"]),
        ("a\tgood\nb\tugly\n", NAMES, [("a", "good"), ("b", "ugly")], [None, None]),
        ("a\tgood\nb\t\n", NAMES, [("a", "good"), ("b", "")], [None, None]),
        ("a\tb\tgood\n", NAMES, [("a", "b")], ["good"]),
        ("a\t1.5\nb\t2\n", None, [("a",), ("b",)], ["1.5", "2"]),
        ("a\tb\nc\td\n", None, [("a", "b"), ("c", "d")], [None, None]),
    ],
)
def test_a_last_column_of_known_labels_is_one_of_labels(
    text: str, labels: tuple[str, ...] | None, texts: list[tuple[str, ...]], found: list[str | None], tmp_path: Path
) -> None:
    rows = read_rows(given(tmp_path / "t.tsv", text), Numbers() if labels is None else Classes(labels))
    assert [row.texts for row in rows] == texts
    assert [row.label for row in rows] == found


@pytest.mark.parametrize("text", ["review,stars\na,good\nb,bad\n", "text\na\nb\n", "Nummer,Urteil\na,good\n"])
def test_a_header_needs_the_names_of_columns(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="t.csv:1 looks like a header: name the columns with --text and --label, or"):
        read_rows(given(tmp_path / "t.csv", text), Classes(NAMES))


def test_the_output_has_ids_texts_and_all_probabilities_and_gaps_for_empty_texts() -> None:
    examples = [
        Example("t:2", ("a b",), "good", "x"),
        Example("t:3", ("",), "bad", "y"),
        Example("t:4", ("c",), "bad", "z"),
    ]
    scores = {"a b": [0.0, 0.0], "c": [0.0, 2.0]}

    def run(texts: list[tuple[str, ...]]) -> torch.Tensor:
        return torch.tensor([scores[text] for (text,) in texts])

    predicted = predict_rows(examples, run, Classes(NAMES))
    assert [line.split("\t") for line in predicted.text.splitlines()] == [
        ["label", "probability", "P(bad)", "P(good)", "id", "text"],
        ["bad", "0.5000", "0.5000", "0.5000", "x", "a b"],
        ["", "", "", "", "y", ""],
        ["good", "0.8808", "0.1192", "0.8808", "z", "c"],
    ]
    assert predicted.metrics == {"accuracy": 0.0, "mcc": -100.0}
    assert (predicted.right, predicted.labels) == (["good", "bad"], ["bad", "good"])

    numbers = [Example("t:1", ("a", "b")), Example("t:2", ("c", "d"))]
    predicted = predict_rows(numbers, lambda texts: torch.tensor([[0.5], [-1.25]]), Numbers(scale=2.0))
    assert predicted.text == "value\ttext\ttext_pair\n1\ta\tb\n-2.5\tc\td\n" and predicted.metrics is None
    with pytest.raises(ValueError, match="t:3 and all rows after it have no text"):
        predict_rows(examples[1:2], run, Classes(NAMES))


@pytest.mark.parametrize(
    ("labels", "right", "wrong"),
    [(Classes(NAMES), "bad", "ugly"), (Numbers(), "1.5", "high"), (Sets(NAMES), ("bad",), ("good", "ugly"))],
)
def test_an_unknown_label_is_refused_before_the_work(labels: Any, right: Any, wrong: Any) -> None:
    examples = [Example("t:2", ("a",), right), Example("t:3", ("b",), wrong)]
    unknown = "high" if wrong == "high" else "ugly"
    with pytest.raises(ValueError, match=f"^t:3 has the label '{unknown}', but the known labels are "):
        predict_rows(examples, lambda texts: pytest.fail("the model was run"), labels)


@pytest.mark.parametrize(
    ("wanted", "names", "positive"),
    [("bad", NAMES, 0), ("", NAMES, None), ("0", ("0", "1"), 0), (None, ("0", "1"), 1), ("gone", ("0", "1"), 1)],
)
def test_the_positive_label_is_that_of_training(
    wanted: str | None, names: tuple[str, ...], positive: int | None, tmp_path: Path
) -> None:
    (tmp_path / "label").mkdir()
    label_dictionary(names).save(str(tmp_path / "label" / "dict.txt"))
    config = SimpleNamespace(task=SimpleNamespace(), criterion=SimpleNamespace(positive_label=wanted))
    labels = sentence_labels(config, [tmp_path / "elsewhere", tmp_path])
    assert isinstance(labels, Classes) and labels.positive == (None if positive is None else names[positive])


def test_a_folder_with_other_labels_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    args = Namespace(checkpoint=tmp_path / "checkpoint_best.pt", vocabulary=tmp_path / "task")
    check_labels(args, Classes(("good", "great")))
    (tmp_path / "label").mkdir()
    label_dictionary(NAMES).save(str(tmp_path / "label" / "dict.txt"))
    check_labels(args, Classes(NAMES))
    with pytest.raises(ValueError, match=r"fine-tuned on other labels \('bad'\) than those in .*task \('good'\)"):
        check_labels(args, Classes(("good", "great")))


class Lengths(torch.nn.Module):
    """A hub interface whose score of a text is its number of tokens: one for each word."""

    dictionary = SimpleNamespace(pad=lambda: 0)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.limits = TextLimits(limit)

    @property
    def model(self) -> "Lengths":
        return self

    def encode(self, text: str, max_length: int, masks: bool) -> torch.Tensor:
        assert not masks
        return torch.ones(len(text.split()[:max_length]), dtype=torch.int64)

    def predict(self, head: str, tokens: torch.Tensor, **unused: Any) -> torch.Tensor:
        return tokens.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(("limit", "lengths"), [(6, [2, 6]), (9, [2, 9])])
def test_texts_are_truncated_as_in_training(limit: int, lengths: list[int]) -> None:
    assert score_texts(Lengths(limit), ["a b", "a " * 20], "head")[:, 0].tolist() == lengths
