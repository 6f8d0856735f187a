"""GLUE's files, with independent copies of their headers and rows."""

import re
from pathlib import Path

import pytest

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.finetuning.sentences.glue import TASKS, Quirks, read_glue
from fairseq_maelm.finetuning.tables import Example

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
MNLI += "sentence1 sentence2"
STS = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"

# task, split, the file as it begins, its first example: sentences, label, number in a submission
FILES = [
    ("CoLA", "train", "gj04\t0\t*\tThe box\u2028heavy\x85.\r\n", ("The box heavy .",), "0", "0"),
    ("CoLA", "valid", 'gj04\t1\t\tIt "sank.\n', ('It "sank.',), "1", "0"),
    ("CoLA", "test", "index\tsentence\n7\tBill left.\n", ("Bill left.",), None, "7"),
    ("SST-2", "train", "sentence\tlabel\na joy  \t1\n", ("a joy",), "1", "0"),
    ("MRPC", "train", MRPC + "0\t1\t2\tA.\tB.\n", ("A.", "B."), "0", "0"),
    ("MRPC", "test", "index" + MRPC[7:] + "0\t1\t2\tA.\tB.\n", ("A.", "B."), None, "0"),
    (
        "MNLI",
        "train",
        f"{MNLI} label1 gold_label".replace(" ", "\t")
        + "\n0\t1\t2\tg\ta\tb\tc\td\tIt \"is.\tn/a\tneutral\tentailment\n",
        ('It "is.', "n/a"),
        "entailment",
        "0",
    ),
    (
        "MNLI",
        "valid1",
        f"{MNLI} label1 label2 label3 label4 label5 gold_label".replace(" ", "\t")
        + "\n0\t1\t2\tg\ta\tb\tc\td\tOne.\tTwo.\t-\t-\t-\t-\t-\tneutral\n",
        ("One.", "Two."),
        "neutral",
        "0",
    ),
    ("MNLI", "test1", MNLI.replace(" ", "\t") + "\n4\t1\t2\tg\ta\tb\tc\td\tOne.\tTwo.\n", ("One.", "Two."), None, "4"),
    ("STS-B", "train", STS.replace(" ", "\t") + "\n0\tg\tf\ty\t1\tn\tn\tA.\tB.\t3.800\n", ("A.", "B."), "3.800", "0"),
    ("STS-B", "test", STS[:-6].replace(" ", "\t") + "\n0\tg\tf\ty\t1\tn\tn\tA.\tB.\n", ("A.", "B."), None, "0"),
    ("QQP", "valid", QQP + "9\t1\t2\tA?\t\t1\n", ("A?", ""), "1", "0"),
    ("QQP", "test", "id\tquestion1\tquestion2\n5\tA?\tB?\n", ("A?", "B?"), None, "5"),
    ("QNLI", "train", "index\tquestion\tsentence\tlabel\n0\tA?\tB.\tnot_entailment\n", ("A?", "B."),
     "not_entailment", "0"),
    ("RTE", "test", "index\tsentence1\tsentence2\n2\tA.\tB.\n", ("A.", "B."), None, "2"),
]  # fmt: skip


def read(
    folder: Path, task: str, split: str, content: str, alternative: int = 0, quirks: Quirks | None = None
) -> list[Example]:
    table = TASKS[task].tables[split][alternative]
    (folder / table.file).write_bytes(content.encode("utf-8"))
    return list(read_glue(folder / table.file, table, TASKS[task], Quirks() if quirks is None else quirks))


@pytest.mark.parametrize(
    ("task", "split", "content", "texts", "label", "number"), FILES, ids=[f"{row[0]} {row[1]}" for row in FILES]
)
def test_every_layout_is_understood(task, split, content, texts, label, number, tmp_path):
    quirks = Quirks()
    (example,) = read(tmp_path, task, split, content, quirks=quirks)
    assert (example.texts, example.label, example.id) == (texts, label, number)
    assert quirks == Quirks(empty_sentences=int("" in texts))


MSR = f"\ufeff{MRPC}".replace("\n", "\r\n") + "".join(
    f'{label}\t{first}\t{second}\t"{first} rose\tit "rose" {second}\r\n'
    for label, first, second in [(1, 702876, 702977), (0, 2108705, 2108831), (1, 1330381, 1330521)]
)


def test_paraphrases_as_microsoft_distributes_them_are_split_by_glues_list(tmp_path):
    with pytest.raises(FileNotFoundError, match="put GLUE's list of the dev set, dev_ids.tsv, into this folder"):
        read(tmp_path, "MRPC", "train", MSR, 1)
    (tmp_path / "dev_ids.tsv").write_text("2108705\t2108831\n", encoding="utf-8")
    train, dev, test = (read(tmp_path, "MRPC", split, MSR, 1) for split in ("train", "valid", "test"))
    assert [(example.label, example.id) for example in train] == [("1", "0"), ("1", "1")]
    assert train[0].texts == ('"702876 rose', 'it "rose" 702977')
    assert [example.label for example in dev] == ["0"]
    assert [(example.label, example.id) for example in test] == [(None, "0"), (None, "1"), (None, "2")]


def test_broken_rows_are_joined_and_what_fits_nowhere_is_counted(tmp_path):
    content = QQP + (
        "1\t3\t4\tWhole?\tYes?\t0\n"
        '2\t5\t6\t"Is it cut\n"\tor not?\t1\n'  # lines 3 and 4
        "3\t7\t8\tCut\n\ntwice?\tB?\t0\n"  # lines 5 to 7
        "no row at all\n"  # line 8
        "4\t9\t10\tWhole?\tToo?\t1\n"
        "5\t1\t2\tToo\tmany\ttabs\there?\t0\n"  # line 10
        "6\t1\t2\tNo end\n"  # line 11
    )
    quirks = Quirks()
    examples = read(tmp_path, "QQP", "train", content, quirks=quirks)
    assert [example.texts for example in examples] == [
        ("Whole?", "Yes?"),
        ('"Is it cut "', "or not?"),
        ("Cut twice?", "B?"),
        ("Whole?", "Too?"),
    ]
    assert [example.label for example in examples] == ["0", "1", "0", "1"]
    assert quirks.rejoined == [3, 5] and quirks.left_out == [8, 10, 11]


@pytest.mark.parametrize(
    ("task", "split", "content", "message"),
    [
        ("RTE", "train", "index\tsentence1\tlabel\n", ":1 has no column 'sentence2', only 'index', 'sentence1', 'la"),
        ("RTE", "train", "index\tsentence1\tsentence2\tlabel\n0\tA.\tentailment\n",
         ":2 has 3 columns, but the first line has 4"),
        ("CoLA", "valid", "gj04\t1\t\t \n", ":1 has an empty sentence"),
        ("CoLA", "test", "index\tsentence\nx\tA.\n", ":2 has the index 'x', which is not a number"),
    ],
)  # fmt: skip
def test_what_is_not_glue_is_named(task, split, content, message, tmp_path):
    with pytest.raises(CorpusError, match=re.escape(message)):
        read(tmp_path, task, split, content)
