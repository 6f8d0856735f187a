"""Readers of GLUE's files: tabs separate columns, line feeds separate rows, and quotation marks are text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.glue_layout import HIGHEST_SCORE, GlueTask, Table
from fairseq_maelm.lines import columns_in, numbered_lines
from fairseq_maelm.text.cleaning import clean_text

DEV_IDS_FILES = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


class GlueExample(NamedTuple):
    """A row of a file."""

    place: str  # file and line, for error messages
    sentences: tuple[str, ...]  # one or two, cleaned
    label: str | None  # as written; None in test sets
    number: str  # the index under which the prediction is submitted


@dataclass
class Quirks:
    """Irregular rows of a file."""

    rejoined: list[int] = field(default_factory=list)  # first lines of rows that were joined from several lines
    left_out: list[int] = field(default_factory=list)  # lines that are pieces of rows, but do not fit together
    empty_sentences: int = 0  # number of rows with an empty sentence


class TableReader:
    """A reader of one file of a task; ``examples`` fills ``quirks``."""

    def __init__(self, path: Path, table: Table, task: GlueTask) -> None:
        self.path, self.table, self.task = path, table, task
        self.quirks = Quirks()
        self._dev_pairs = set() if table.held_out is None else _read_dev_pairs(path.parent)

    def examples(self) -> Iterator[GlueExample]:
        """Yield the examples in the file's order."""
        self.quirks = Quirks()
        count = 0
        for line, cells in self._rows():
            row = dict(zip(self.table.columns, cells))
            if self.table.held_out is not None:
                listed = (row["#1 ID"].strip(), row["#2 ID"].strip()) in self._dev_pairs
                if listed != self.table.held_out:
                    continue
            place = f"{self.path}:{line}"
            sentences = tuple(clean_text(row[column]) for column in self.table.sentences)
            if not all(sentences):
                if not self.task.empty_sentences:
                    raise CorpusError(f"{place} has an empty sentence")
                self.quirks.empty_sentences += 1
            label = None if self.table.label is None else self._checked_label(row[self.table.label].strip(), place)
            number = str(count) if self.table.index is None else row[self.table.index].strip()
            if not number.isdigit():
                raise CorpusError(f"{place} has the index {number!r}, which is not a number")
            yield GlueExample(place, sentences, label, number)
            count += 1

    def _checked_label(self, label: str, place: str) -> str:
        if self.task.labels is not None:
            if label not in self.task.labels:
                raise CorpusError(
                    f"{place} has the label {label!r}; the task's labels are {', '.join(self.task.labels)}"
                )
            return label
        try:
            inside = 0.0 <= float(label) <= HIGHEST_SCORE
        except ValueError:
            inside = False
        if not inside:
            raise CorpusError(f"{place} has the score {label!r}: it must be a number from 0 to {HIGHEST_SCORE:g}")
        return label

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the cells of each row; join the pieces of broken rows if the task has any."""
        width = len(self.table.columns)
        pieces: list[tuple[int, list[str]]] = []
        for number, line in numbered_lines(self.path):
            cells = line.split("\t")
            if number == 1 and self.table.header:
                self._check_header(cells)
                continue
            if len(cells) == width:
                self._leave_out(pieces)
                yield number, cells
                continue
            if not self.task.broken_rows:
                raise CorpusError(
                    f"{self.path}:{number} has {columns_in(cells)}, but must have {width}: give the file as GLUE "
                    "distributes it"
                )
            pieces.append((number, cells))
            joined = " ".join("\t".join(piece) for _, piece in pieces).split("\t")
            if len(joined) == width and self._is_whole(joined):
                self.quirks.rejoined.append(pieces[0][0])
                yield pieces[0][0], joined
                pieces.clear()
            elif len(joined) >= width:
                self._leave_out(pieces)
        self._leave_out(pieces)

    def _check_header(self, cells: list[str]) -> None:
        found = tuple(cell.strip() for cell in cells)
        if found != self.table.columns:
            raise CorpusError(
                f"{self.path} has the columns {', '.join(found)}, but must have {', '.join(self.table.columns)}: give "
                "the file as GLUE distributes it"
            )

    def _is_whole(self, cells: list[str]) -> bool:
        """Return whether joined pieces have the index and the label of a row."""
        row = dict(zip(self.table.columns, cells))
        has_label = self.table.label is None or row[self.table.label].strip() in (self.task.labels or ())
        return cells[0].strip().isdigit() and has_label

    def _leave_out(self, pieces: list[tuple[int, list[str]]]) -> None:
        self.quirks.left_out += [number for number, _ in pieces]
        pieces.clear()


def _read_dev_pairs(folder: Path) -> set[tuple[str, str]]:
    """Read GLUE's list of the pairs of sentence numbers in MRPC's dev set."""
    path = next((folder / name for name in DEV_IDS_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has MRPC as Microsoft distributes it, where dev and train are one file: put GLUE's list of the "
            f"dev set, {DEV_IDS_FILES[0]}, into this folder"
        )
    pairs = set()
    for number, line in numbered_lines(path, blank=False):
        pair = line.split()
        if len(pair) != 2:
            raise CorpusError(f"{path}:{number} is not a pair of sentence numbers")
        pairs.add((pair[0], pair[1]))
    return pairs
