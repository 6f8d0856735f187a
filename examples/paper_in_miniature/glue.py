"""GLUE's files as tables of sentences and labels, which examples/finetuning reads."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from fairseq_maelm.corpus import CorpusError, clean_text


class GlueTask(NamedTuple):
    """How GLUE distributes a task, and how it is scored.

    Attributes:
        columns: of train.tsv and dev.tsv, in all.
        sentences: the columns of its one or two sentences.
        label: the column of its label.
        header: whether the first line names the columns.
        metric: as in the paper's Table 1, by its name in examples/ablations.
        mlm: the paper's "RoBERTa (Ours)" of base size, median of five seeds.
        maelm: its MAE-LM.
    """

    columns: int
    sentences: tuple[int, ...]
    label: int
    header: bool
    metric: str
    mlm: float
    maelm: float


TASKS = {
    "CoLA": GlueTask(4, (3,), 1, False, "mcc", 64.3, 63.1),
    "SST-2": GlueTask(2, (0,), 1, True, "accuracy", 93.7, 93.8),
    "RTE": GlueTask(4, (1, 2), 3, True, "accuracy", 75.5, 79.1),
    "STS-B": GlueTask(10, (7, 8), 9, True, "spearman", 89.5, 90.9),
}


def read_examples(path: Path, task: GlueTask) -> Iterator[tuple[str, ...]]:
    """Yield the sentences and the label of every example.

    Raises:
        CorpusError: a line has not the columns that GLUE's file has, or a cell is empty.
        FileNotFoundError: there is no such file.
    """
    with open(path, encoding="utf-8", newline="") as stream:
        # Quotation marks in GLUE belong to the sentences.
        reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, cells in enumerate(reader, 1):
            if number == 1 and task.header:
                continue
            if len(cells) != task.columns:
                raise CorpusError(
                    f"{path}, line {number} has {len(cells)} columns and not {task.columns}: give the files of GLUE as "
                    "they are distributed"
                )
            example = (*(clean_text(cells[column]) for column in task.sentences), cells[task.label].strip())
            if not all(example):
                raise CorpusError(f"{path}, line {number} has an empty sentence or label")
            yield example


def write_tables(folder: Path, name: str, output: Path, most_examples: Optional[int]) -> dict[str, int]:
    """Write ``train.tsv`` and ``valid.tsv`` for `maelm prepare sentences` and ``valid.txt``, one document an example.

    Args:
        folder: GLUE's, with one folder for each task.
        name: of the task.
        output: folder for the three files.
        most_examples: of training, spread evenly over GLUE's file, which is ordered by source in some tasks; None takes
            all.

    Returns:
        examples by split.
    """
    task = TASKS[name]
    output.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, source in (("train", "train.tsv"), ("valid", "dev.tsv")):
        examples = list(read_examples(folder / name / source, task))
        if split == "train" and most_examples is not None and most_examples < len(examples):
            examples = [examples[number * len(examples) // most_examples] for number in range(most_examples)]
        if not examples:
            raise CorpusError(f"{folder / name / source} is empty")
        lines = ["\t".join(example) for example in examples]
        (output / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        counts[split] = len(examples)
        documents = ["\n".join(example[:-1]) for example in examples]
    (output / "valid.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return counts


def check_folder(folder: Path) -> None:
    """Refuse a folder that lacks a file, before hours are spent.

    Raises:
        FileNotFoundError: names all that is missing.
    """
    missing = [
        f"{name}/{file}" for name in TASKS for file in ("train.tsv", "dev.tsv") if not (folder / name / file).exists()
    ]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: --tasks must be a folder in GLUE's layout")
