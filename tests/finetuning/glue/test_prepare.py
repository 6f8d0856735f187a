"""Folders of GLUE tasks: what fairseq reads out of them, what the manifest says, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_maelm import cli
from fairseq_maelm.corpus import CorpusError, train_sentencepiece, write_dictionary
from fairseq_maelm.finetuning import sentence_data
from fairseq_maelm.finetuning.glue.prepare import GlueSettings, prepare_task
from fairseq_maelm.finetuning.glue.prepared import TaskFolder
from fairseq_maelm.finetuning.sentence_data import example_lengths
from fairseq_maelm.text.tokenizer import Tokenizer
from fairseq_maelm.text.vocabulary import load_sentencepiece

WORDS = "the cook sailed a boat and ate bread while it rained on an old harbour wall"
LONG = " ".join([WORDS] * 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary as ``maelm prepare corpus`` leaves it."""
    folder = tmp_path_factory.mktemp("data")
    text = [" ".join(WORDS.split()[number % 7 :]) + "." for number in range(50)]
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece(text, 60, "nmt_nfkc_cf", 1.0))
    write_dictionary(load_sentencepiece(folder / "sentencepiece.bpe.model"), folder / "dict.txt")
    return folder


def write_rte(folder: Path, test: bool = True) -> Path:
    """RTE with three, two and one examples, the second one of training long."""
    (folder / "RTE").mkdir(parents=True)
    header = "index\tsentence1\tsentence2\tlabel\n"
    train = f"0\tThe cook ate.\tIt rained.\tentailment\n1\t{LONG}\tA boat.\tnot_entailment\n2\tA.\tB.\tentailment\n"
    (folder / "RTE" / "train.tsv").write_text(header + train, encoding="utf-8")
    dev = "0\tA boat.\tA cook.\tnot_entailment\n1\tIt rained.\tIt rained.\tentailment\n"
    (folder / "RTE" / "dev.tsv").write_text(header + dev, encoding="utf-8")
    if test:
        (folder / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n5\tA.\tBread.\n", encoding="utf-8")
    return folder


def settings_of(folder: Path, data: Path, **changes: object) -> GlueSettings:
    return GlueSettings(folder / "glue", data, folder / "out", **{"accept_counts": True, **changes})


def read(prefix: Path) -> list[list[int]]:
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[number].tolist() for number in range(len(dataset))]


def test_everything_is_kept_and_cut_to_the_models_length(tmp_path, data):
    write_rte(tmp_path / "glue")
    manifest = prepare_task("RTE", settings_of(tmp_path, data, max_positions=20))
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
    assert labels.symbols[labels.nspecial :] == ["entailment", "not_entailment"]
    assert read(folder / "label" / "train") == [[4, 2], [5, 2], [4, 2]]
    assert read(folder / "label" / "valid") == [[5, 2], [4, 2]]
    assert not (folder / "label" / "test.idx").exists()
    assert TaskFolder.read(folder).indices("test") == ["5"]
    splits = manifest["splits"]
    assert [splits[split]["examples"] for split in ("train", "valid", "test")] == [3, 2, 1]
    assert [splits[split]["truncated"] for split in ("train", "valid", "test")] == [1, 0, 0]
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8")) == manifest
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["RTE"]


def test_scores_are_stored_between_0_and_1(tmp_path, data):
    columns = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    (tmp_path / "glue" / "STS-B").mkdir(parents=True)
    row = "\t".join(["0", "g", "f", "y", "1", "n", "n", "A.", "B."])
    for name in ("train", "dev"):
        text = columns.replace(" ", "\t") + f"\n{row}\t3.800\n{row}\t5.000\n"
        (tmp_path / "glue" / "STS-B" / f"{name}.tsv").write_text(text, encoding="utf-8")
    manifest = prepare_task("STS-B", settings_of(tmp_path, data))
    label = tmp_path / "out" / "STS-B" / "label"
    assert [float(line) for line in (label / "valid.label").read_text().split()] == [pytest.approx(0.76), 1.0]
    assert manifest["labels"] is None and not (label / "dict.txt").exists()


def test_tables_longer_than_a_chunk_lose_nothing(tmp_path, data, monkeypatch):
    monkeypatch.setattr(sentence_data, "_CHUNK", 10)
    write_rte(tmp_path / "glue")
    lines = "".join(f"{number}\tA cook.\tA boat.\tentailment\n" for number in range(67))
    own = tmp_path / "own.tsv"
    own.write_text("index\tsentence1\tsentence2\tlabel\n" + lines, encoding="utf-8")
    settings = settings_of(tmp_path, data, train_files={"RTE": own})
    assert prepare_task("RTE", settings)["splits"]["train"]["examples"] == 67
    assert len(read(tmp_path / "out" / "RTE" / "input0" / "train")) == 67


def test_other_counts_than_the_official_ones_are_refused_unless_wanted(tmp_path, data):
    write_rte(tmp_path / "glue")
    message = "RTE/train.tsv has 3 examples and the official file 2,490: it is cut off or another version"
    with pytest.raises(CorpusError, match=message):
        prepare_task("RTE", settings_of(tmp_path, data, accept_counts=False))
    assert not (tmp_path / "out" / "RTE").exists()
    # A training file of one's own has no official count, the dev set still has.
    own = {"RTE": tmp_path / "glue" / "RTE" / "train.tsv"}
    with pytest.raises(CorpusError, match=r"RTE/dev.tsv has 2 examples and the official file 277"):
        prepare_task("RTE", settings_of(tmp_path, data, accept_counts=False, train_files=own))


def test_a_finished_folder_is_kept_and_another_one_never_overwritten(tmp_path, data):
    write_rte(tmp_path / "glue")
    manifest = prepare_task("RTE", settings_of(tmp_path, data))
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert prepare_task("RTE", settings_of(tmp_path, data)) == manifest
    with pytest.raises(CorpusError, match="made from something else: --max-positions was 512 and is now 64"):
        prepare_task("RTE", settings_of(tmp_path, data, max_positions=64))
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    (tmp_path / "out" / "RTE" / "manifest.json").unlink()
    with pytest.raises(FileExistsError, match="RTE exists already: name another folder, or remove it first"):
        prepare_task("RTE", settings_of(tmp_path, data))


def test_the_command_prepares_what_is_there_and_says_what_is_not(tmp_path, data, capsys):
    write_rte(tmp_path / "glue", test=False)
    request = ["prepare", "glue", str(tmp_path / "glue"), "--data", str(data), "--output", str(tmp_path / "out")]
    cli.main([*request, "--accept-counts"])
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'out' / 'RTE'}\n"
    assert "has no CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI" in captured.err
    assert "RTE/test.tsv, so there will be no predictions for it" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "CoLA"], "there is no {glue}/CoLA/train.tsv"),
        (["--tasks", "RTE"], "RTE/train.tsv has 3 examples and the official file 2,490"),
        (["--train-file", "RTE"], "--train-file takes TASK=FILE, such as QNLI=train.tsv, and not 'RTE'"),
        (["--train-file", "SNLI=a.tsv"], "there is no task 'SNLI' in GLUE"),
        (["--train-file", "RTE=missing.tsv"], "there is no training file missing.tsv"),
        (["--max-positions", "5"], "--max-positions must be at least 6, not 5"),
        (["--data", "{glue}"], "there is no dict.txt in {glue}, or neither sentencepiece.bpe.model nor"),
    ],
)
def test_wrong_use_is_explained(words, message, tmp_path, data):
    glue = write_rte(tmp_path / "glue")
    request = ["prepare", "glue", str(glue), "--data", str(data), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=re.escape(message.format(glue=glue))):
        cli.main([*request, *(word.format(glue=glue) for word in words)])


def test_a_dictionary_of_another_vocabulary_is_refused(tmp_path, data):
    glue = write_rte(tmp_path / "glue")
    other = tmp_path / "data"
    other.mkdir()
    (other / "sentencepiece.bpe.model").write_bytes((data / "sentencepiece.bpe.model").read_bytes())
    (other / "dict.txt").write_text("a 1\nb 1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="dict.txt"):
        cli.main(["prepare", "glue", str(glue), "--data", str(other), "--output", str(tmp_path / "out")])
