"""From tables to task folders: labels, held-out examples, and errors."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm.cli import main
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.finetuning.sentences import prepare
from fairseq_maelm.finetuning.sentences.kind import SentenceSettings
from fairseq_maelm.finetuning.sentences.prepare import draw, prepare_sentences

ROWS = [f"the cook sailed boat number {number}\t{'even' if number % 2 == 0 else 'odd'}" for number in range(67)]


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def stored(task: Path, split: str) -> list[Any]:
    """The classes of a split."""
    labels = MMapIndexedDataset(str(task / "label" / split))
    return [labels[number].tolist() for number in range(len(labels))]


def test_tables_longer_than_a_chunk_lose_nothing(
    vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_CHUNK", 10)
    table = write(tmp_path / "train.tsv", ROWS)
    manifest = prepare_sentences(SentenceSettings(train=table, valid=table), vocabulary, tmp_path / "task")
    inputs = MMapIndexedDataset(str(tmp_path / "task" / "input0" / "train"))
    assert len(inputs) == 67
    assert stored(tmp_path / "task", "train") == [[4 + number % 2, 2] for number in range(67)]
    assert len({tuple(inputs[number].tolist()) for number in range(67)}) == 67, "every line is there once"
    assert (manifest["kind"], manifest["texts"], manifest["labels"]) == ("sentences", 1, ["even", "odd"])
    assert manifest["splits"]["valid"] == {"examples": 67, "labels": {"even": 34, "odd": 33}}
    assert Dictionary.load(str(tmp_path / "task" / "label" / "dict.txt")).symbols[4:] == ["even", "odd"]


def test_a_part_is_held_out_alike_of_all_labels(vocabulary: Path, tmp_path: Path) -> None:
    rows = [f"boat {number}\t{'rare' if number < 20 else 'often'}" for number in range(200)]
    table = write(tmp_path / "train.tsv", rows)
    arguments = ["prepare", "sentences", "--train", str(table), "--vocabulary", str(vocabulary)]
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        main([*arguments, "--output", str(tmp_path / name), "--seed", str(seed), "--valid-fraction", "0.2"])
    splits = json.loads((tmp_path / "a" / "manifest.json").read_text())["splits"]
    assert splits["train"] == {"examples": 160, "labels": {"often": 144, "rare": 16}}
    assert splits["valid"] == {"examples": 40, "labels": {"often": 36, "rare": 4}, "held_out_of": "train"}

    def texts(name: str, split: str) -> Counter[tuple[int, ...]]:
        found = MMapIndexedDataset(str(tmp_path / name / "input0" / split))
        return Counter(tuple(found[number].tolist()) for number in range(len(found)))

    assert texts("a", "valid") == texts("b", "valid") != texts("c", "valid")
    assert texts("a", "train") + texts("a", "valid") == texts("c", "train") + texts("c", "valid")
    settings = json.loads((tmp_path / "a" / "manifest.json").read_text())["settings"]
    assert (settings["valid_fraction"], settings["seed"]) == (0.2, 1)


@pytest.mark.parametrize("counts", [(100, 100), (7, 3, 90), (1, 1, 1, 97), (5, 5, 5, 5, 5)])
def test_the_draw_takes_what_was_asked_for(counts: tuple[int, ...]) -> None:
    strata = [str(number) for number, count in enumerate(counts) for _ in range(count)]
    drawn = draw(strata, 0.1, 1)
    assert len(drawn) == round(0.1 * len(strata))
    found = Counter(strata[number] for number in drawn)
    assert all(abs(found[str(number)] - 0.1 * count) < 1 for number, count in enumerate(counts))


def test_numbers_and_a_test_table_without_labels(vocabulary: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ["text,score", *(f"boat {number},{number / 2}" for number in range(20))])
    test = write(tmp_path / "test.csv", ["text", "the cook"])
    words = ["prepare", "sentences", "--train", str(train), "--test", str(test), "--vocabulary", str(vocabulary)]
    main([*words, "--output", str(tmp_path / "task"), "--text", "text", "--label", "score", "--regression"])
    label = tmp_path / "task" / "label"
    numbers = [float(line) for split in ("train", "valid") for line in (label / f"{split}.label").read_text().split()]
    assert sorted(numbers) == [number / 2 for number in range(20)]
    assert not (label / "dict.txt").exists() and not (label / "test.label").exists()
    assert len(MMapIndexedDataset(str(tmp_path / "task" / "input0" / "test"))) == 1


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ("a\tgood\nb\tbad\n", "c\td\tgood\n", "valid.tsv:1 has 2 texts, but the training table has 1"),
        (
            "a\tgood\nb\tbad\n",
            "c\tugly\n",
            "valid.tsv:1 has the label 'ugly', but the known labels are 'bad', 'good': correct it",
        ),
        ("a\tx\tgood\nb\ty\tbad\n", "c\tgood\n", "valid.tsv:1 has no label: only --test may lack labels"),
        ("a\tgood\nb\tgood\n", "", "classification needs at least two"),
        ("a\tgood\na\tbad\n", "", "the texts of all 2 rows of"),
        ("a\t1.5\nb\t1.5\n", "", "the labels of all 2 rows of"),
        ("a\tgood\nb\tmadeupword0\n", "", "the label 'madeupword0' is the name of one of fairseq's special symbols"),
        ("a\tgood\nb\tbad\n", "", "valid.tsv is empty"),
        ("a\t1.5\nb\tnan\n", "", "train.tsv:2 has the label 'nan', but the known labels are finite numbers"),
        ("sentence\tlabel\na\tgood\nb\tbad\n", "c\tgood\n", "train.tsv:1 looks like a header: its cells name"),
        (
            "Satz\tUrteil\na\tgood\nb\tbad\nc\tgood\nd\tbad\n",
            "c\tgood\n",
            "looks like a header: its label 'Urteil' is on this line only, but every other label is on several lines. "
            "Name the columns with --text and --label, remove the line, or move it down if it is an example",
        ),
        ("a\tgood\nb\tbad\n", None, "--valid-fraction 0.1 holds out 0 of the 2 examples of"),
    ],
)
def test_bad_tables_are_explained(
    train: str, valid: str | None, message: str, vocabulary: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.tsv").write_text(train, encoding="latin-1")
    if valid is not None:
        (tmp_path / "valid.tsv").write_text(valid, encoding="latin-1")
    settings = SentenceSettings(
        train=tmp_path / "train.tsv",
        valid=None if valid is None else tmp_path / "valid.tsv",
        regression="1.5" in train,
    )
    with pytest.raises(CorpusError, match=re.escape(message)):
        prepare_sentences(settings, vocabulary, tmp_path / "task")
    assert not (tmp_path / "task").exists()


def test_a_rare_label_in_the_first_row_of_named_columns_is_not_a_header(vocabulary: Path, tmp_path: Path) -> None:
    table = tmp_path / "train.csv"
    table.write_text("review,stars\na singular film,5\n" + "good,4\nbad,1\n" * 5)
    settings = SentenceSettings(train=table, valid=table, text="review", label="stars")
    assert prepare_sentences(settings, vocabulary, tmp_path / "task")["labels"] == ["1", "4", "5"]


def test_labels_with_a_line_end_are_refused(vocabulary: Path, tmp_path: Path) -> None:
    table = tmp_path / "train.csv"
    table.write_text('text,label\na,"x\ny"\nb,z\n')
    settings = SentenceSettings(train=table, valid=table, text="text", label="label")
    with pytest.raises(CorpusError, match=re.escape(r"the label 'x\ny' has a line end")):
        prepare_sentences(settings, vocabulary, tmp_path / "task")
