"""Reading examples: tables with one example a line, and the original files of GLUE."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.lines import numbered_lines

logger = logging.getLogger(__name__)


class Example(NamedTuple):
    """An example of a task.

    Attributes:
        sentences: one or several; of several, some may be empty.
        label: as written; None where there is none.
    """

    sentences: tuple[str, ...]
    label: str | None


class Columns(NamedTuple):
    """The columns of a GLUE file, from 0, as the code of Gao et al. reads them.

    Attributes:
        header: whether the first line names the columns.
        sentences: columns of the sentences.
        label: column of the label; -1 is the last.
    """

    header: bool
    sentences: tuple[int, ...]
    label: int


GLUE_COLUMNS = {
    "CoLA": Columns(False, (3,), 1),
    "SST-2": Columns(True, (0,), 1),
    "MRPC": Columns(True, (3, 4), 0),
    "QQP": Columns(True, (3, 4), 5),
    "STS-B": Columns(True, (7, 8), -1),
    "MNLI": Columns(True, (8, 9), -1),
    "QNLI": Columns(True, (1, 2), -1),
    "RTE": Columns(True, (1, 2), -1),
}


def read_table(path: Path, sentences: int) -> list[Example]:
    """Read a table: UTF-8 without a header, tabs between the sentences and, behind them, the label.

    The label may be missing, in all lines.

    Args:
        path: of the table.
        sentences: of an example.

    Raises:
        ValueError: names file and line of what is no example.
    """
    examples = []
    columns = sentences + 1
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if number == 1 and len(cells) == sentences:
            columns = sentences
        if len(cells) != columns:
            raise ValueError(
                f"{path}, line {number} has {len(cells)} columns, and should have {columns}: the prompt's {sentences} "
                "sentence(s), then the label"
            )
        if not any(cell.strip() for cell in cells[:sentences]):
            raise ValueError(f"{path}, line {number} has no text")
        label = cells[sentences].strip() if columns > sentences else None
        if label == "":
            raise ValueError(f"{path}, line {number} has no label")
        examples.append(Example(tuple(cells[:sentences]), label))
    if not examples:
        raise ValueError(f"{path} is empty")
    return examples


def glue_examples(task: str, lines: Iterable[str], place: str) -> Iterator[Example]:
    """Read the lines of a GLUE file, its header left out.

    Lines of QQP that lack columns are left out with a warning, as the code of Gao et al. does.

    Args:
        task: a key of ``GLUE_COLUMNS``.
        lines: of the file.
        place: its name, for messages.

    Raises:
        ValueError: if a line of another task lacks columns.
    """
    columns = GLUE_COLUMNS[task]
    needed = 1 + max(*columns.sentences, columns.label)
    for number, line in enumerate(lines, 1 + columns.header):
        cells = line.rstrip("\n").split("\t")
        if len(cells) < needed:
            message = f"{place}, line {number} has {len(cells)} columns, and {task} has {needed} at least"
            if task != "QQP":
                raise ValueError(message)
            logger.warning("%s: left out", message)
            continue
        yield Example(tuple(cells[column] for column in columns.sentences), cells[columns.label].strip())


def read_glue(task: str, path: Path) -> list[Example]:
    """Read an original GLUE file with labels, such as dev.tsv.

    Raises:
        ValueError: if the task has no known columns, or a line lacks columns.
    """
    if task not in GLUE_COLUMNS:
        raise ValueError(f"the columns of {task!r} are not known; GLUE's tasks are {', '.join(GLUE_COLUMNS)}")
    lines = [line for _, line in numbered_lines(path)]
    return list(glue_examples(task, lines[int(GLUE_COLUMNS[task].header) :], str(path)))
