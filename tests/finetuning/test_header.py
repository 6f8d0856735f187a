"""A header is recognized, and an example is not taken for a header."""

from collections import Counter

import pytest

from fairseq_maelm.finetuning.tables import header_reason

CLASSES = ["good"] * 3 + ["bad"] * 2


def reason(row: str, others: list[str]) -> str | None:
    *texts, label = row.split("\t")
    return header_reason(texts, label, Counter([label, *others]))


@pytest.mark.parametrize(
    "row",
    [
        *("sentence\tlabel", "Text\tLabel", "sentence1\tsentence2\tgold_label", "#1 String\t#2 String\tQuality"),
        *("premise\thypothesis\tclass", "question1\tquestion2\tis_duplicate", "Title\tTopic", "token\tpos_tag"),
    ],
)
@pytest.mark.parametrize("others", [CLASSES, ["good", "bad"], ["a", "b", "c", "c"]])
def test_names_of_columns_are_a_header(row: str, others: list[str]) -> None:
    assert "name columns" in str(reason(row, others))


def test_the_header_of_two_joined_tables_is_one() -> None:
    assert "name columns" in str(reason("sentence\tlabel", ["good", "bad", "label", "good"]))


@pytest.mark.parametrize("row", ["Satz\tUrteil", "phrase\tavis", "a long title of a column\tverdict"])
def test_a_label_of_its_own_above_labels_that_repeat_is_a_header(row: str) -> None:
    assert "is on this line only" in str(reason(row, CLASSES))


@pytest.mark.parametrize(
    ("row", "others"),
    [
        ("a fine film\tgood", CLASSES),
        ("a fine film\tgood", ["bad"]),
        # One example of the rarer of two classes.
        ("a fine film\tgood", ["bad"] * 9),
        # Few-shot: every label once; and a second rare label.
        ("a fine film\tgood", ["bad", "mixed", "neutral"]),
        ("a fine film\texcellent", [*CLASSES, "mixed"]),
        ("what is the label of a bottle?\tlabel", [*CLASSES, "label"]),
        ("content\tpos", ["pos", "neg"]),
        ("sentence\tNOUN", ["NOUN", "VERB", "VERB"]),
    ],
)
def test_an_example_is_no_header(row: str, others: list[str]) -> None:
    assert reason(row, others) is None
