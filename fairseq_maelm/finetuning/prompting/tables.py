"""Reading examples: tables with one example a line, and the original files of GLUE."""

import logging
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.finetuning.glue_layout import TASKS, Table
from fairseq_maelm.finetuning.glue_reading import TableReader
from fairseq_maelm.lines import numbered_lines

logger = logging.getLogger(__name__)


class Example(NamedTuple):
    """An example of a task: one sentence or several, of which some may be empty, and its label as written, if any."""

    sentences: tuple[str, ...]
    label: str | None


def read_table(path: Path, sentences: int, task: str = "") -> list[Example]:
    """Read a table: UTF-8 without a header, tabs between the sentences and, behind them, the label.

    The label may be missing, in all lines.

    Args:
        path: of the table, or of an original file of GLUE with labels.
        sentences: of an example.
        task: of GLUE, whose original files are known by their names and columns.
    """
    original = _original(path, task)
    examples = _read_lines(path, sentences) if original is None else _read_glue(path, original, task)
    if not examples:
        raise ValueError(f"{path} is empty")
    return examples


def _read_lines(path: Path, sentences: int) -> list[Example]:
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
    return examples


def _original(path: Path, task: str) -> Table | None:
    """Return the layout of an original file of a GLUE task; None for any other table."""
    tables = [table for tables in TASKS[task].tables.values() for table in tables] if task in TASKS else []
    _, first = next(numbered_lines(path), (0, ""))
    cells = tuple(cell.strip() for cell in first.split("\t"))
    for table in tables:
        known = cells == table.columns if table.header else len(cells) == len(table.columns)
        if known and table.file == path.name and table.label is not None:
            return table
    return None


def _read_glue(path: Path, table: Table, task: str) -> list[Example]:
    reader = TableReader(path, table, TASKS[task])
    examples = [Example(example.sentences, example.label) for example in reader.examples()]
    if reader.quirks.left_out:
        logger.warning("%s: %d lines are pieces of rows and left out", path, len(reader.quirks.left_out))
    return examples
