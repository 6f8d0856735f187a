"""How GLUE distributes its eight tasks: files, columns, numbers of rows, labels.

The numbers of rows are those of the official files as everyone's readers count them; where a file went around in two
states, both numbers stand here.
"""

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Table:
    """One file of a task.

    Attributes:
        file: its name in the task's folder.
        columns: names of its columns, which its first line holds; of a file without such a line, their names here.
        rows: the official numbers of examples.
        sentences: columns of the one or two sentences.
        label: column of the label, None in test sets.
        index: column of the number under which a prediction is handed in; None where it is the row's, from 0.
        header: whether the first line names the columns.
        held_out: of a file that holds two splits: None takes all rows, False those that dev_ids.tsv does not list, True
            those that it lists.
    """

    file: str
    columns: tuple[str, ...]
    rows: tuple[int, ...]
    sentences: tuple[str, ...]
    label: Optional[str] = None
    index: Optional[str] = None
    header: bool = True
    held_out: Optional[bool] = None


@dataclass(frozen=True)
class GlueTask:
    """A task.

    Attributes:
        labels: in the order of the classes, which is alphabetical; None for the numbers 0 to 5 of STS-B.
        positive: the label that F1 is of; None where nobody reports F1.
        tables: split -> the files that it may come from, the first that is there counts. Splits have fairseq's names:
            train, valid, test and, of MNLI mismatched, valid1 and test1.
        names: test split -> name of its file in a submission, without ".tsv".
        broken_rows: whether the official files hold rows that a line break inside a sentence cuts into pieces.
        empty_sentences: whether the official files hold rows with an empty sentence.
    """

    labels: Optional[tuple[str, ...]]
    positive: Optional[str]
    tables: dict[str, tuple[Table, ...]]
    names: dict[str, str]
    broken_rows: bool = False
    empty_sentences: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")

_MNLI = _words(
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2"
)
_MNLI_DEV = _MNLI + _words("label1 label2 label3 label4 label5 gold_label")
_STS = _words("index genre filename year old_index source1 source2 sentence1 sentence2")
_COLA = ("source", "label", "original_label", "sentence")
_QQP = _words("id qid1 qid2 question1 question2 is_duplicate")
_QUESTIONS = ("question1", "question2")
_MRPC = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
_MRPC_TEST = ("index", *_MRPC[1:])
_STRINGS = ("#1 String", "#2 String")
_QNLI = _words("index question sentence label")
_RTE = _words("index sentence1 sentence2 label")

_MSR_TRAIN, _MSR_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"

TASKS: dict[str, GlueTask] = {
    "CoLA": GlueTask(
        _YES_NO,
        "1",
        {
            "train": (Table("train.tsv", _COLA, (8551,), ("sentence",), "label", header=False),),
            "valid": (Table("dev.tsv", _COLA, (1043,), ("sentence",), "label", header=False),),
            "test": (Table("test.tsv", ("index", "sentence"), (1063,), ("sentence",), index="index"),),
        },
        {"test": "CoLA"},
    ),
    "SST-2": GlueTask(
        _YES_NO,
        "1",
        {
            "train": (Table("train.tsv", ("sentence", "label"), (67349,), ("sentence",), "label"),),
            "valid": (Table("dev.tsv", ("sentence", "label"), (872,), ("sentence",), "label"),),
            "test": (Table("test.tsv", ("index", "sentence"), (1821,), ("sentence",), index="index"),),
        },
        {"test": "SST-2"},
    ),
    "MRPC": GlueTask(
        _YES_NO,
        "1",
        {
            "train": (
                Table("train.tsv", _MRPC, (3668,), _STRINGS, "Quality"),
                Table(_MSR_TRAIN, _MRPC, (3668,), _STRINGS, "Quality", held_out=False),
            ),
            "valid": (
                Table("dev.tsv", _MRPC, (408,), _STRINGS, "Quality"),
                Table(_MSR_TRAIN, _MRPC, (408,), _STRINGS, "Quality", held_out=True),
            ),
            "test": (
                Table("test.tsv", _MRPC_TEST, (1725,), _STRINGS, index="index"),
                Table(_MSR_TEST, _MRPC, (1725,), _STRINGS),
            ),
        },
        {"test": "MRPC"},
    ),
    "STS-B": GlueTask(
        None,
        None,
        {
            "train": (Table("train.tsv", (*_STS, "score"), (5749,), _PAIR, "score"),),
            "valid": (Table("dev.tsv", (*_STS, "score"), (1500,), _PAIR, "score"),),
            "test": (Table("test.tsv", _STS, (1379,), _PAIR, index="index"),),
        },
        {"test": "STS-B"},
    ),
    "QQP": GlueTask(
        _YES_NO,
        "1",
        {
            "train": (Table("train.tsv", _QQP, (363849, 363846), _QUESTIONS, "is_duplicate"),),
            "valid": (Table("dev.tsv", _QQP, (40430,), _QUESTIONS, "is_duplicate"),),
            "test": (Table("test.tsv", ("id", *_QUESTIONS), (390965,), _QUESTIONS, index="id"),),
        },
        {"test": "QQP"},
        broken_rows=True,
        empty_sentences=True,
    ),
    "MNLI": GlueTask(
        ("contradiction", "entailment", "neutral"),
        None,
        {
            "train": (Table("train.tsv", (*_MNLI, "label1", "gold_label"), (392702,), _PAIR, "gold_label"),),
            "valid": (Table("dev_matched.tsv", _MNLI_DEV, (9815,), _PAIR, "gold_label"),),
            "valid1": (Table("dev_mismatched.tsv", _MNLI_DEV, (9832,), _PAIR, "gold_label"),),
            "test": (Table("test_matched.tsv", _MNLI, (9796,), _PAIR, index="index"),),
            "test1": (Table("test_mismatched.tsv", _MNLI, (9847,), _PAIR, index="index"),),
        },
        {"test": "MNLI-m", "test1": "MNLI-mm"},
    ),
    "QNLI": GlueTask(
        _ENTAILMENT,
        "entailment",
        {
            "train": (Table("train.tsv", _QNLI, (104743,), ("question", "sentence"), "label"),),
            "valid": (Table("dev.tsv", _QNLI, (5463,), ("question", "sentence"), "label"),),
            "test": (Table("test.tsv", _QNLI[:3], (5463,), ("question", "sentence"), index="index"),),
        },
        {"test": "QNLI"},
    ),
    "RTE": GlueTask(
        _ENTAILMENT,
        "entailment",
        {
            "train": (Table("train.tsv", _RTE, (2490,), _PAIR, "label"),),
            "valid": (Table("dev.tsv", _RTE, (277,), _PAIR, "label"),),
            "test": (Table("test.tsv", _RTE[:3], (3000,), _PAIR, index="index"),),
        },
        {"test": "RTE"},
    ),
}

HIGHEST_SCORE = 5.0
"""Scores of STS-B lie in [0, 5]."""


def submission_name(task: str, split: str) -> str:
    """Name of a split as tables and submissions show it, such as "MNLI-mm" for "test1" and "valid1" of MNLI."""
    return TASKS[task].names[split.replace("valid", "test")]
