"""Folders of GLUE tasks: the data that fairseq reads, the manifest, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm import cli
from fairseq_maelm.finetuning.sentences.dataset import example_lengths
from fairseq_maelm.text.tokenizer import Tokenizer

LONG = " ".join(["the cook sailed a boat and ate bread while it rained on an old harbour wall"] * 4)
HEADER = "index\tsentence1\tsentence2\tlabel\n"


def write_rte(folder: Path, test: bool = True) -> Path:
    """RTE with three, two and one examples; the second training example is long."""
    (folder / "RTE").mkdir(parents=True)
    train = f"0\tThe cook ate.\tIt rained.\tentailment\n1\t{LONG}\tA boat.\tnot_entailment\n2\tA.\tB.\tentailment\n"
    (folder / "RTE" / "train.tsv").write_text(HEADER + train, encoding="utf-8")
    dev = "0\tA boat.\tA cook.\tnot_entailment\n1\tIt rained.\tIt rained.\tentailment\n"
    (folder / "RTE" / "dev.tsv").write_text(HEADER + dev, encoding="utf-8")
    if test:
        (folder / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n5\tA.\tBread.\n", encoding="utf-8")
    return folder


def prepare(folder: Path, vocabulary: Path, *words: Any, counts: bool = False) -> dict[str, Any]:
    """Prepare what is in folder/glue and return the manifest of the last task."""
    request = ["prepare", "glue", folder / "glue", "--vocabulary", vocabulary, "--output", folder / "out", *words]
    cli.main([*map(str, request), *([] if counts else ["--accept-counts"])])
    (path,) = (folder / "out").glob("*/manifest.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read(prefix: Path) -> list[list[int]]:
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[number].tolist() for number in range(len(dataset))]


def test_everything_is_kept_and_cut_to_the_models_length(tmp_path: Path, vocabulary: Path) -> None:
    write_rte(tmp_path / "glue")
    manifest = prepare(tmp_path, vocabulary, "--max-length", 20)
    folder = tmp_path / "out" / "RTE"
    dictionary = Dictionary.load(str(folder / "input0" / "dict.txt"))
    dictionary.add_symbol("<mask>")
    tokenizer = Tokenizer(str(folder / "input0" / "sentencepiece.bpe.model"), dictionary)
    first, second = read(folder / "input0" / "train"), read(folder / "input1" / "train")
    assert first[0] == [*tokenizer.encode("The cook ate."), 2]
    boat = tokenizer.encode("A boat.")
    assert second[1] == [*boat, 2], "the shorter one stays whole"
    assert first[1] == [*tokenizer.encode(LONG)[: 16 - len(boat)], 2]
    assert example_lengths(folder, "train").tolist() == [2 + len(a) + len(b) for a, b in zip(first, second)]
    assert example_lengths(folder, "train").max() == 20
    labels = Dictionary.load(str(folder / "label" / "dict.txt"))
    assert labels.symbols[labels.nspecial :] == manifest["labels"] == ["entailment", "not_entailment"]
    assert read(folder / "label" / "train") == [[4, 2], [5, 2], [4, 2]]
    assert read(folder / "label" / "valid") == [[5, 2], [4, 2]]
    assert not (folder / "label" / "test.idx").exists()
    assert (folder / "index" / "test.txt").read_text() == "5\n"
    splits = [manifest["splits"][split] for split in ("train", "valid", "test")]
    assert [(split["examples"], split["truncated"]) for split in splits] == [(3, 1), (2, 0), (1, 0)]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["RTE"]


def prepare_scores(tmp_path: Path, vocabulary: Path, score: str) -> dict[str, Any]:
    columns = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    (tmp_path / "glue" / "STS-B").mkdir(parents=True)
    row = "\t".join(["0", "g", "f", "y", "1", "n", "n", "A.", "B."])
    for name in ("train", "dev"):
        text = columns.replace(" ", "\t") + f"\n{row}\t{score}\n{row}\t5.000\n"
        (tmp_path / "glue" / "STS-B" / f"{name}.tsv").write_text(text, encoding="utf-8")
    return prepare(tmp_path, vocabulary)


def test_scores_are_stored_between_0_and_1(tmp_path: Path, vocabulary: Path) -> None:
    manifest = prepare_scores(tmp_path, vocabulary, "3.800")
    label = tmp_path / "out" / "STS-B" / "label"
    assert [float(line) for line in (label / "valid.label").read_text().split()] == [pytest.approx(0.76), 1.0]
    assert (manifest["labels"], manifest["scale"]) == (None, 5.0) and not (label / "dict.txt").exists()


def test_a_training_file_of_ones_own_has_no_official_count(tmp_path: Path, vocabulary: Path) -> None:
    write_rte(tmp_path / "glue")
    with pytest.raises(
        SystemExit,
        match=r"RTE/train.tsv has 3 examples, but the official file has 2,490: the file is incomplete, or not",
    ):
        prepare(tmp_path, vocabulary, counts=True)
    own = tmp_path / "own.tsv"
    own.write_text(HEADER + "".join(f"{number}\tA cook.\tA boat.\tentailment\n" for number in range(67)))
    with pytest.raises(SystemExit, match=r"RTE/dev.tsv has 2 examples, but the official file has 277"):
        prepare(tmp_path, vocabulary, "--train-file", f"RTE={own}", counts=True)
    assert not (tmp_path / "out" / "RTE").exists()
    assert prepare(tmp_path, vocabulary, "--train-file", f"RTE={own}")["splits"]["train"]["examples"] == 67


def test_the_command_prepares_what_is_there_and_says_what_is_not(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rte(tmp_path / "glue", test=False)
    prepare(tmp_path, vocabulary)
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'out' / 'RTE'}\n"
    assert "has no CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI" in captured.err
    assert "RTE/test.tsv, so there will be no predictions for it" in captured.err


@pytest.mark.parametrize("score", ["5.1", "nan"])
def test_scores_outside_of_the_scale_are_refused(score: str, tmp_path: Path, vocabulary: Path) -> None:
    with pytest.raises(
        SystemExit, match=f"train.tsv:2 has the label '{score}', but the known labels are finite numbers from 0 to 5"
    ):
        prepare_scores(tmp_path, vocabulary, score)
