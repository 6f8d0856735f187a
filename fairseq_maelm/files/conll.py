"""Files of labeled words in CoNLL-U or CoNLL columns: readers, and replacement of the labels.

A ``LabeledFile`` keeps all lines, and each sentence stores the line numbers of its words. Therefore labels can be
replaced without changing comments, blank lines, multi-word ranges, empty nodes and other columns.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files.kinds import CONLLU, CSV, TEXT, TSV, kind_of
from fairseq_maelm.files.lines import columns_in, numbered_lines
from fairseq_maelm.options import UsageError, number

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
DOCUMENT_START = "-DOCSTART-"
# CoNLL-U's empty value, which is not allowed for UPOS.
_EMPTY = "_"

_CONLLU_ID = re.compile(r"(\d+)([-.]\d+)?\Z")


@dataclass(frozen=True)
class Layout:
    """A file's format, word column and label column."""

    form: str  # "conllu" or "conll"
    column: str  # label column: in CoNLL-U one of ``CONLLU_COLUMNS``, otherwise an index, negative from the end
    word_column: int = 0  # index of the word column, for "conll"
    comment_prefix: str = ""  # start of comment lines, for "conll"; empty if there are none

    def __post_init__(self) -> None:
        if self.form == "conllu" and self.column not in CONLLU_COLUMNS[1:]:
            raise UsageError(
                f"CoNLL-U has no label column {self.column!r}: choose one of {', '.join(CONLLU_COLUMNS[2:])}"
            )
        if self.form == "conll" and not re.fullmatch(r"-?\d+", self.column):
            raise UsageError(f"the label column must be a number (0: first, -1: last), not {self.column!r}")

    @property
    def label_index(self) -> int:
        """The index of the label column."""
        return CONLLU_COLUMNS.index(self.column) if self.form == "conllu" else int(self.column)


def add_layout_arguments(parser: Any) -> None:
    """Declare the options of a ``Layout``."""
    parser.add_argument(
        "--format", choices=("conllu", "conll"),
        help="CoNLL-U, or columns separated by tabs or spaces (default: detected from the file's name and first lines)",
    )  # fmt: skip
    parser.add_argument(
        "--column", metavar="C",
        help="label column: for CoNLL-U a name (default: UPOS), otherwise a number, such as 0 for the first column "
        "and -1 for the last (default: -1)",
    )  # fmt: skip
    parser.add_argument("--word-column", type=number(int, 0), metavar="N", help="column of the words (default: 0)")
    parser.add_argument(
        "--comment-prefix", metavar="TEXT", help="prefix of comment lines (default: no line is a comment)"
    )


def layout_of(args: argparse.Namespace, path: Path, default: Layout | None = None) -> Layout:
    """Infer the layout of a file from its kind and the options; without options, the default layout if it fits."""
    kind = kind_of(path, (CONLLU, TSV, CSV, TEXT), "write each word and its label on a line of a .conll file")
    form = args.format or ("conllu" if kind == CONLLU else "conll")
    if default is not None and args.format is args.column is args.word_column is args.comment_prefix is None:
        # Columns of CoNLL would make the ids of CoNLL-U words.
        return Layout("conllu", "UPOS") if default.form != form == "conllu" else default
    column = args.column or ("UPOS" if form == "conllu" else "-1")
    return Layout(form, column, args.word_column or 0, args.comment_prefix or "")


class Sentence(NamedTuple):
    """A sentence of labeled words."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]  # line number of each word, from 1


class LabeledFile(NamedTuple):
    """The content of a labeled file."""

    path: Path
    layout: Layout
    lines: list[str]  # without line ends
    sentences: list[Sentence]
    newline: str  # line end, for writing


def read(path: Path, layout: Layout, labeled: bool = True) -> LabeledFile:
    """Read a file; if not ``labeled``, labels may be missing and are then empty strings."""
    lines = [line for _, line in numbered_lines(path)]
    sentences = list(_sentences(path, lines, layout, labeled))
    if not sentences:
        raise ValueError(f"{path} contains no sentences: check --format")
    with open(path, "rb") as stream:
        newline = "\r\n" if stream.readline().endswith(b"\r\n") else "\n"
    return LabeledFile(path, layout, lines, sentences, newline)


def _sentences(path: Path, lines: Sequence[str], layout: Layout, labeled: bool) -> Iterator[Sentence]:
    words: list[tuple[str, str, int]] = []
    columns = 0
    for place, line in enumerate([*lines, ""], 1):
        if not line.strip() or line.split()[0] == DOCUMENT_START:
            if words:
                yield Sentence(*(tuple(part) for part in zip(*words)))
            words = []
            continue
        try:
            cells = word_cells(line, layout)
            if cells is None:
                continue
            # A different number of columns means that the line was split wrongly.
            if columns and len(cells) != columns:
                raise ValueError(f"has {columns_in(cells)}, but the lines before it have {columns}")
            columns = len(cells)
            words.append((*_word_and_label(cells, layout, labeled), place))
        except ValueError as error:
            raise ValueError(f"{path}:{place} {error}") from error


def word_cells(line: str, layout: Layout) -> list[str] | None:
    """Split a word's line into cells; return None for a comment, a multi-word range or an empty node.

    Error messages start with a verb ("has ..."); the caller puts the file name and line number in front.
    """
    if layout.form == "conll":
        if layout.comment_prefix and line.startswith(layout.comment_prefix):
            return None
        # Other white space, such as a no-break space, may be part of a word.
        return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
    if line.startswith("#"):
        return None
    cells = line.split("\t")
    if len(cells) != len(CONLLU_COLUMNS):
        raise ValueError(f"has {columns_in(cells)}, but CoNLL-U has {len(CONLLU_COLUMNS)}, separated by tabs")
    found = _CONLLU_ID.match(cells[0])
    if found is None:
        raise ValueError(f"has the ID {cells[0]!r}: it must be a number, a range like 3-4, or an empty node like 3.1")
    return None if found[2] else cells


def _word_and_label(cells: list[str], layout: Layout, labeled: bool) -> tuple[str, str]:
    word_index = CONLLU_COLUMNS.index("FORM") if layout.form == "conllu" else layout.word_column
    index = layout.label_index if layout.label_index >= 0 else len(cells) + layout.label_index
    if not 0 <= word_index < len(cells):
        raise ValueError(f"has {columns_in(cells)}, so there is no word column {word_index}")
    word = cells[word_index]
    if not word:
        raise ValueError("has an empty word")
    if not 0 <= index < len(cells) or index == word_index:
        if labeled:
            raise ValueError(f"has {columns_in(cells)}, so there is no label column {layout.column}")
        return word, ""
    label = cells[index].strip()
    if labeled and (not label or (layout.column == "UPOS" and label == _EMPTY)):
        raise ValueError(f"has no label in the column {layout.column}")
    return word, label


def lacks_labels(file: LabeledFile) -> bool:
    """Return whether words lack the column of labels; an empty cell after a tab is not missing."""
    return any(
        not label and not file.lines[place - 1].endswith("\t")
        for sentence in file.sentences
        for place, label in zip(sentence.lines, sentence.labels, strict=True)
    )


def relabeled(file: LabeledFile, labels: Sequence[Sequence[str]], add: bool) -> list[str]:
    """Return the lines of a file with new labels.

    If ``add``, keep the old labels and append the new ones as a last column, or in CoNLL-U as ``Predicted=`` in MISC.
    """
    lines = list(file.lines)
    for sentence, own in zip(file.sentences, labels, strict=True):
        for place, label in zip(sentence.lines, own, strict=True):
            lines[place - 1] = _relabeled_line(lines[place - 1], file.layout, label, add)
    return lines


def _relabeled_line(line: str, layout: Layout, label: str, add: bool) -> str:
    if layout.form == "conllu":
        cells = line.split("\t")
        if add:
            kept = [] if cells[-1] == _EMPTY else [cells[-1]]
            cells[-1] = "|".join([*kept, f"Predicted={label}"])
        else:
            cells[layout.label_index] = label
        return "\t".join(cells)
    separator = "\t" if "\t" in line else " "
    if add:
        return (line if separator == "\t" else line.rstrip(" ")) + separator + label
    # Keep the spaces between columns, which may be several for alignment.
    cells = re.split(r"(\t| +)", line) if separator == " " else re.split(r"(\t)", line)
    places = [place for place in range(0, len(cells), 2) if cells[place] or separator == "\t"]
    cells[places[layout.label_index]] = label
    return "".join(cells)
