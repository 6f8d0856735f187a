"""The files of GLUE's eight tasks: names, columns, numbers of rows, labels.

The numbers of rows are those of the official files; a table has two numbers where two versions of its file are in use.
"""

from dataclasses import dataclass

HIGHEST_SCORE = 5.0
"""Scores of STS-B are in [0, 5]."""


@dataclass(frozen=True)
class Table:
    """One file of a task.

    Attributes:
        file: name in the task's folder.
        columns: names of the columns, as in the file's first line; for a file without such a line, names chosen here.
        rows: the official numbers of examples.
        sentences: columns of the one or two sentences.
        label: column of the label; None in test sets.
        index: column of the number under which a prediction is submitted; None to number the rows from 0.
        header: whether the first line names the columns.
        held_out: for a file with two splits: True for the rows that dev_ids.tsv lists, False for the other rows; None
            takes all rows.
    """

    file: str
    columns: tuple[str, ...]
    rows: tuple[int, ...]
    sentences: tuple[str, ...]
    label: str | None = None
    index: str | None = None
    header: bool = True
    held_out: bool | None = None


@dataclass(frozen=True)
class GlueTask:
    """A task.

    Attributes:
        labels: in the order of the classes, which is alphabetical; None for the scores of STS-B.
        tables: split -> its possible files, of which the first that exists is used. Splits have fairseq's names: train,
            valid, test and, for MNLI mismatched, valid1 and test1.
        broken_rows: whether line breaks inside sentences cut rows of the official files into pieces.
        empty_sentences: whether the official files have rows with an empty sentence.
    """

    labels: tuple[str, ...] | None
    tables: dict[str, tuple[Table, ...]]
    broken_rows: bool = False
    empty_sentences: bool = False


def _tables(
    columns: tuple[str, ...],
    test_columns: tuple[str, ...],
    sentences: tuple[str, ...],
    label: str,
    rows: tuple[int, int, int],
    header: bool = True,
) -> dict[str, tuple[Table, ...]]:
    """Return the tables of the usual layout: train.tsv, dev.tsv and test.tsv, the last with an index column."""
    train, valid, test = rows
    return {
        "train": (Table("train.tsv", columns, (train,), sentences, label, header=header),),
        "valid": (Table("dev.tsv", columns, (valid,), sentences, label, header=header),),
        "test": (Table("test.tsv", test_columns, (test,), sentences, index=test_columns[0]),),
    }


_YES_NO, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_PAIR, _QUESTIONS, _STRINGS = ("sentence1", "sentence2"), ("question1", "question2"), ("#1 String", "#2 String")
_INDEX_AND_SENTENCE = ("index", "sentence")
_PARSES = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
_MNLI = ("index", "promptID", "pairID", "genre", *_PARSES, *_PAIR)
_MNLI_DEV = (*_MNLI, "label1", "label2", "label3", "label4", "label5", "gold_label")
_STS = ("index", "genre", "filename", "year", "old_index", "source1", "source2", *_PAIR)
_QQP = ("id", "qid1", "qid2", *_QUESTIONS, "is_duplicate")
_MRPC = ("Quality", "#1 ID", "#2 ID", *_STRINGS)
_QNLI = ("index", "question", "sentence", "label")
_RTE = ("index", *_PAIR, "label")

_QQP_TABLES = _tables(_QQP, ("id", *_QUESTIONS), _QUESTIONS, "is_duplicate", (363849, 40430, 390965))
_QQP_TABLES["train"] = (Table("train.tsv", _QQP, (363849, 363846), _QUESTIONS, "is_duplicate"),)
_MRPC_TABLES = _tables(_MRPC, ("index", *_MRPC[1:]), _STRINGS, "Quality", (3668, 408, 1725))
# Microsoft's original files.
_MRPC_TABLES["train"] += (Table("msr_paraphrase_train.txt", _MRPC, (3668,), _STRINGS, "Quality", held_out=False),)
_MRPC_TABLES["valid"] += (Table("msr_paraphrase_train.txt", _MRPC, (408,), _STRINGS, "Quality", held_out=True),)
_MRPC_TABLES["test"] += (Table("msr_paraphrase_test.txt", _MRPC, (1725,), _STRINGS),)
_MNLI_TABLES: dict[str, tuple[Table, ...]] = {
    "train": (Table("train.tsv", (*_MNLI, "label1", "gold_label"), (392702,), _PAIR, "gold_label"),),
    "valid": (Table("dev_matched.tsv", _MNLI_DEV, (9815,), _PAIR, "gold_label"),),
    "valid1": (Table("dev_mismatched.tsv", _MNLI_DEV, (9832,), _PAIR, "gold_label"),),
    "test": (Table("test_matched.tsv", _MNLI, (9796,), _PAIR, index="index"),),
    "test1": (Table("test_mismatched.tsv", _MNLI, (9847,), _PAIR, index="index"),),
}
_COLA = ("source", "label", "original_label", "sentence")
_COLA_TABLES = _tables(_COLA, _INDEX_AND_SENTENCE, ("sentence",), "label", (8551, 1043, 1063), header=False)
_SST_TABLES = _tables(("sentence", "label"), _INDEX_AND_SENTENCE, ("sentence",), "label", (67349, 872, 1821))
_QNLI_TABLES = _tables(_QNLI, _QNLI[:3], ("question", "sentence"), "label", (104743, 5463, 5463))

TASKS: dict[str, GlueTask] = {
    "CoLA": GlueTask(_YES_NO, _COLA_TABLES),
    "SST-2": GlueTask(_YES_NO, _SST_TABLES),
    "MRPC": GlueTask(_YES_NO, _MRPC_TABLES),
    "STS-B": GlueTask(None, _tables((*_STS, "score"), _STS, _PAIR, "score", (5749, 1500, 1379))),
    "QQP": GlueTask(_YES_NO, _QQP_TABLES, broken_rows=True, empty_sentences=True),
    "MNLI": GlueTask(("contradiction", "entailment", "neutral"), _MNLI_TABLES),
    "QNLI": GlueTask(_ENTAILMENT, _QNLI_TABLES),
    "RTE": GlueTask(_ENTAILMENT, _tables(_RTE, _RTE[:3], _PAIR, "label", (2490, 277, 3000))),
}


def submission_name(task: str, split: str) -> str:
    """Return the name of a validation or test split in tables and submissions: the task's, or "MNLI-m" or "MNLI-mm"."""
    if task != "MNLI":
        return task
    return "MNLI-mm" if split.endswith("1") else "MNLI-m"
