"""Reading examples: tables with one example a line, and the original files of GLUE."""

import logging
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.finetuning.glue_reading import TableReader
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


def read_table(path: Path, sentences: int) -> list[Example]:
    """Read a table: UTF-8 without a header, tabs between the sentences and, behind them, the label.

    The label may be missing, in all lines.

    Args:
        path: of the table.
        sentences: of an example.
    """
    examples = []
    columns = sentences + 1
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if number == 1 and len(cells) == sentences:
            columns = sentences
        if len(cells) != columns:
            raise ValueError(
                f"{path}:{number} has {len(cells)} columns, and should have {columns}: the prompt's {sentences} "
                "sentence(s), then the label"
            )
        if not any(cell.strip() for cell in cells[:sentences]):
            raise ValueError(f"{path}:{number} has no text")
        label = cells[sentences].strip() if columns > sentences else None
        if label == "":
            raise ValueError(f"{path}:{number} has no label")
        examples.append(Example(tuple(cells[:sentences]), label))
    if not examples:
        raise ValueError(f"{path} is empty")
    return examples


def read_glue(task: str, path: Path) -> list[Example]:
    """Read an original GLUE file with labels, such as dev.tsv."""
    if task not in TASKS:
        raise ValueError(f"the columns of {task!r} are not known; GLUE's tasks are {', '.join(TASKS)}")
    labeled = [table for tables in TASKS[task].tables.values() for table in tables if table.label is not None]
    table = next((table for table in labeled if table.file == path.name), None)
    if table is None:
        names = ", ".join(dict.fromkeys(table.file for table in labeled))
        raise ValueError(f"{path} is none of the labeled files of {task}, which are {names}")
    reader = TableReader(path, table, TASKS[task])
    examples = [Example(example.sentences, example.label) for example in reader.examples()]
    if not examples:
        raise ValueError(f"{path} is empty")
    if reader.quirks.left_out:
        logger.warning("%s: %d lines are pieces of rows and left out", path, len(reader.quirks.left_out))
    return examples
