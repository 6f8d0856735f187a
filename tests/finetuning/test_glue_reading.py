"""Readers of GLUE's files, with independent copies of their headers and rows."""

import re
from pathlib import Path

import pytest

from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.glue_layout import TASKS, submission_name
from fairseq_maelm.finetuning.glue_reading import TableReader

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
MNLI += "sentence1 sentence2"
STS = "index genre filename year old_index source1 source2 sentence1 sentence2 score"

# task, split, the file as it begins, its first example: sentences, label, number in a submission
FILES = [
    ("CoLA", "train", "gj04\t0\t*\tThe box heavy.\n", ("The box heavy.",), "0", "0"),
    ("CoLA", "valid", "gj04\t1\t\tIt \"sank\".\n", ('It "sank".',), "1", "0"),
    ("CoLA", "test", "index\tsentence\n7\tBill left.\n", ("Bill left.",), None, "7"),
    ("SST-2", "train", "sentence\tlabel\na joy  \t1\n", ("a joy",), "1", "0"),
    ("SST-2", "test", "index\tsentence\n3\ta joy\n", ("a joy",), None, "3"),
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
    ("QQP", "valid", "id qid1 qid2 question1 question2 is_duplicate".replace(" ", "\t") + "\n9\t1\t2\tA?\tB?\t1\n",
     ("A?", "B?"), "1", "0"),
    ("QQP", "test", "id\tquestion1\tquestion2\n5\tA?\tB?\n", ("A?", "B?"), None, "5"),
    ("QNLI", "train", "index\tquestion\tsentence\tlabel\n0\tA?\tB.\tnot_entailment\n", ("A?", "B."),
     "not_entailment", "0"),
    ("QNLI", "test", "index\tquestion\tsentence\n2\tA?\tB.\n", ("A?", "B."), None, "2"),
    ("RTE", "train", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n", ("A.", "B."), "entailment", "0"),
    ("RTE", "test", "index\tsentence1\tsentence2\n2\tA.\tB.\n", ("A.", "B."), None, "2"),
]  # fmt: skip


def reader_of(folder: Path, task: str, split: str, content: str, alternative: int = 0) -> TableReader:
    table = TASKS[task].tables[split][alternative]
    (folder / table.file).write_bytes(content.encode("utf-8"))
    return TableReader(folder / table.file, table, TASKS[task])


@pytest.mark.parametrize(
    ("task", "split", "content", "sentences", "label", "number"), FILES, ids=[f"{row[0]} {row[1]}" for row in FILES]
)
def test_every_layout_is_understood(task, split, content, sentences, label, number, tmp_path):
    (example,) = reader_of(tmp_path, task, split, content).examples()
    assert (example.sentences, example.label, example.number) == (sentences, label, number)


def test_all_eight_tasks_and_their_splits_are_there():
    assert list(TASKS) == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"]
    for name, task in TASKS.items():
        own = ["train", "valid", "test"] if name != "MNLI" else ["train", "valid", "valid1", "test", "test1"]
        assert list(task.tables) == own
        assert task.labels is None or list(task.labels) == sorted(task.labels)
    assert submission_name("MNLI", "valid") == "MNLI-m" and submission_name("MNLI", "test1") == "MNLI-mm"


def test_quotation_marks_end_no_cell_and_odd_characters_end_no_line(tmp_path):
    content = 'a\t1\t\t"He said\u2028so\x85here.\nb\t0\t\tStop."\r\n'
    examples = list(reader_of(tmp_path, "CoLA", "train", content).examples())
    assert [example.sentences for example in examples] == [('"He said so here.',), ('Stop."',)]


HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
MSR = f"\ufeff{HEADER}\r\n" + "".join(
    f'{label}\t{first}\t{second}\t"{first} rose\tit "rose" {second}\r\n'
    for label, first, second in [(1, 702876, 702977), (0, 2108705, 2108831), (1, 1330381, 1330521)]
)


def test_paraphrases_as_microsoft_distributes_them_are_split_by_glues_list(tmp_path):
    (tmp_path / "dev_ids.tsv").write_text("2108705\t2108831\n", encoding="utf-8")
    train = list(reader_of(tmp_path, "MRPC", "train", MSR, alternative=1).examples())
    dev = list(reader_of(tmp_path, "MRPC", "valid", MSR, alternative=1).examples())
    assert [(example.label, example.number) for example in train] == [("1", "0"), ("1", "1")]
    assert train[0].sentences == ('"702876 rose', 'it "rose" 702977')
    assert [example.label for example in dev] == ["0"]
    test = list(reader_of(tmp_path, "MRPC", "test", MSR, alternative=1).examples())
    assert [(example.label, example.number) for example in test] == [(None, "0"), (None, "1"), (None, "2")]


def test_paraphrases_as_glues_script_writes_them(tmp_path):
    (example,) = reader_of(tmp_path, "MRPC", "train", f"{HEADER}\n0\t1\t2\tA.\tB.\n").examples()
    assert (example.sentences, example.label) == (("A.", "B."), "0")
    content = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tA.\tB.\n"
    (example,) = reader_of(tmp_path, "MRPC", "test", content).examples()
    assert (example.sentences, example.number) == (("A.", "B."), "0")


def test_microsofts_file_without_the_list_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="put GLUE's list of the dev set, dev_ids.tsv, into this folder"):
        reader_of(tmp_path, "MRPC", "train", MSR, alternative=1)


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_rows_that_line_breaks_cut_are_joined_and_what_fits_nowhere_is_counted(tmp_path):
    content = QQP + (
        "1\t3\t4\tWhole?\tYes?\t0\n"
        '2\t5\t6\t"Is it cut\n"\tor not?\t1\n'  # lines 3 and 4
        "3\t7\t8\tCut\n\ntwice?\tB?\t0\n"  # lines 5 to 7
        "no row at all\n"  # line 8
        "4\t9\t10\tWhole?\tToo?\t1\n"
        "5\t1\t2\tToo\tmany\ttabs\there?\t0\n"  # line 10
        "6\t1\t2\tNo end\n"  # line 11
    )
    reader = reader_of(tmp_path, "QQP", "train", content)
    examples = list(reader.examples())
    assert [example.sentences for example in examples] == [
        ("Whole?", "Yes?"),
        ('"Is it cut "', "or not?"),
        ("Cut twice?", "B?"),
        ("Whole?", "Too?"),
    ]
    assert [example.label for example in examples] == ["0", "1", "0", "1"]
    assert reader.quirks.rejoined == [3, 5] and reader.quirks.left_out == [8, 10, 11]


def test_empty_questions_are_kept_as_in_the_official_file(tmp_path):
    reader = reader_of(tmp_path, "QQP", "train", QQP + "1\t3\t4\tHow?\t\t0\n")
    (example,) = reader.examples()
    assert example.sentences == ("How?", "") and reader.quirks.empty_sentences == 1


@pytest.mark.parametrize(
    ("task", "split", "content", "message"),
    [
        ("RTE", "train", "index\tsentence1\tlabel\n", "has the columns index, sentence1, label, but must have index, "),
        ("RTE", "train", "index\tsentence1\tsentence2\tlabel\n0\tA.\tentailment\n",
         ":2 has 3 columns, but must have 4"),
        ("RTE", "valid", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tneutral\n",
         ":2 has the label 'neutral'; the task's labels are entailment, not_entailment"),
        ("CoLA", "valid", "gj04\t-\t\tA.\n", ":1 has the label '-'"),
        ("CoLA", "valid", "gj04\t1\t\t \n", ":1 has an empty sentence"),
        ("CoLA", "valid", "gj04\t1\t\tA.\n\n", ":2 has 1 column, but must have 4"),
        ("CoLA", "test", "index\tsentence\nx\tA.\n", ":2 has the index 'x', which is not a number"),
        ("STS-B", "train", STS.replace(" ", "\t") + "\n0\tg\tf\ty\t1\tn\tn\tA.\tB.\t5.1\n", "has the score '5.1'"),
        ("STS-B", "train", STS.replace(" ", "\t") + "\n0\tg\tf\ty\t1\tn\tn\tA.\tB.\tnan\n", "has the score 'nan'"),
    ],
)  # fmt: skip
def test_what_is_not_glue_is_named(task, split, content, message, tmp_path):
    with pytest.raises(CorpusError, match=re.escape(message)):
        list(reader_of(tmp_path, task, split, content).examples())


def test_text_that_is_not_utf_8_is_named(tmp_path):
    table = TASKS["CoLA"].tables["train"][0]
    (tmp_path / table.file).write_bytes(b"a\t1\t\tcaf\xe9\n")
    with pytest.raises(CorpusError, match=":1: not valid UTF-8"):
        list(TableReader(tmp_path / table.file, table, TASKS["CoLA"]).examples())
