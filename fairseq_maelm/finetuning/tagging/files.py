"""Files of labeled words: CoNLL-U, and CoNLL's columns; reading them, and writing them with other labels.

A file is kept as its lines, and a sentence knows the line of each of its words. So a file is written back with all
that is no label as it was: comments, blank lines, multi-word ranges, empty nodes, columns.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_maelm.lines import numbered_lines

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
DOCUMENT_START = "-DOCSTART-"
# What CoNLL-U writes for nothing; a universal part of speech is never nothing.
_EMPTY = "_"

_CONLLU_ID = re.compile(r"(\d+)([-.]\d+)?\Z")


@dataclass(frozen=True)
class Layout:
    """Where words and labels stand in a file.

    Attributes:
        form: "conllu" or "conll".
        column: of the label: in CoNLL-U one of ``CONLLU_COLUMNS``, otherwise a number from 0, negative from the end.
        word_column: of the word, for "conll".
        comment_prefix: for "conll", lines that start so are comments; empty for none.
    """

    form: str
    column: str
    word_column: int = 0
    comment_prefix: str = ""

    def __post_init__(self) -> None:
        if self.form not in ("conllu", "conll"):
            raise ValueError(f"the format must be conllu or conll and is {self.form!r}")
        if self.form == "conllu" and self.column not in CONLLU_COLUMNS[1:]:
            raise ValueError(f"CoNLL-U has no column {self.column!r} of labels; choose one of {CONLLU_COLUMNS[2:]}")
        if self.form == "conll" and not re.fullmatch(r"-?\d+", self.column):
            raise ValueError(
                f"the column of labels must be a number, 0 for the first, -1 for the last: {self.column!r}"
            )

    @property
    def label_index(self) -> int:
        """The column of the label as a number."""
        return CONLLU_COLUMNS.index(self.column) if self.form == "conllu" else int(self.column)


@dataclass(frozen=True)
class Sentence:
    """Words with their labels, and the number of the line of each, from 1."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True)
class LabeledFile:
    """The lines of a file without their ends, the sentences in them, and what ends the lines."""

    path: Path
    layout: Layout
    lines: list[str] = field(repr=False)
    sentences: list[Sentence] = field(repr=False)
    newline: str = "\n"

    def place(self, line: int) -> str:
        """File and line, for messages."""
        return f"{self.path}:{line}"


def read(path: Path, layout: Layout, labeled: bool = True) -> LabeledFile:
    """Read a file.

    Args:
        path: of the file, UTF-8.
        layout: where words and labels stand.
        labeled: whether labels must be there; without it they are read where there are any, otherwise they are empty.
    """
    lines = [line for _, line in numbered_lines(path)]
    sentences = list(_sentences(path, lines, layout, labeled))
    if not sentences:
        raise ValueError(f"{path} has no sentence")
    with open(path, "rb") as stream:
        newline = "\r\n" if stream.readline().endswith(b"\r\n") else "\n"
    return LabeledFile(path, layout, lines, sentences, newline)


def _sentences(path: Path, lines: Sequence[str], layout: Layout, labeled: bool) -> Iterator[Sentence]:
    words: list[tuple[str, str, int]] = []
    columns = 0
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip() or line.split()[0] == DOCUMENT_START:
            if words:
                yield Sentence(*(tuple(part) for part in zip(*words)))
            words = []
            continue
        try:
            cells = word_cells(line, layout)
            if cells is None:
                continue
            # CoNLL-U has as many columns as it must; in other files, a line that differs was cut at the wrong places.
            if columns and len(cells) != columns:
                raise ValueError(f"has {len(cells)} columns, and the lines before it have {columns}")
            columns = len(cells)
            words.append((*_word_and_label(cells, layout, labeled), number))
        except ValueError as error:
            raise ValueError(f"{path}:{number} {error}") from error


def word_cells(line: str, layout: Layout) -> list[str] | None:
    """The cells of a line that holds a word, or None for a comment, a multi-word range or an empty node.

    Messages of errors have no subject: it is the line, which the caller knows.
    """
    if layout.form == "conll":
        if layout.comment_prefix and line.startswith(layout.comment_prefix):
            return None
        # Not at every kind of white space: a no-break space may stand within a word.
        return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
    if line.startswith("#"):
        return None
    cells = line.split("\t")
    if len(cells) != len(CONLLU_COLUMNS):
        raise ValueError(f"has {len(cells)} columns, and CoNLL-U has {len(CONLLU_COLUMNS)}, with tabs between them")
    found = _CONLLU_ID.match(cells[0])
    if found is None:
        raise ValueError(f"has the ID {cells[0]!r}: it must be a number, a range as 3-4, or an empty node as 3.1")
    return None if found[2] else cells


def _word_and_label(cells: list[str], layout: Layout, labeled: bool) -> tuple[str, str]:
    word_index = CONLLU_COLUMNS.index("FORM") if layout.form == "conllu" else layout.word_column
    index = layout.label_index if layout.label_index >= 0 else len(cells) + layout.label_index
    if not 0 <= word_index < len(cells):
        raise ValueError(f"has {len(cells)} columns, so there is no column {word_index} of words")
    word = cells[word_index]
    if not word:
        raise ValueError("has an empty word")
    if not 0 <= index < len(cells) or index == word_index:
        if labeled:
            raise ValueError(f"has {len(cells)} columns, so there is no column {layout.column} of labels")
        return word, ""
    label = cells[index].strip()
    if labeled and (not label or (layout.column == "UPOS" and label == _EMPTY)):
        raise ValueError(f"has no label in the column {layout.column}")
    return word, label


def relabeled(file: LabeledFile, labels: Sequence[Sequence[str]], add: bool) -> list[str]:
    """The lines of a file with other labels.

    Args:
        file: as it was read.
        labels: of every word of every sentence.
        add: leave the column of labels and add the new ones: as a last column, or in CoNLL-U as ``Predicted=`` in MISC.

    Returns:
        the lines without their ends; all that is not replaced or added is as it was.
    """
    lines = list(file.lines)
    for sentence, own in zip(file.sentences, labels, strict=True):
        for number, label in zip(sentence.lines, own, strict=True):
            lines[number - 1] = _relabeled_line(lines[number - 1], file.layout, label, add)
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
        return line.rstrip("\t ") + separator + label
    # The spaces between columns are kept too: there may be several, to align them.
    cells = re.split(r"(\t| +)", line) if separator == " " else re.split(r"(\t)", line)
    places = [place for place in range(0, len(cells), 2) if cells[place] or separator == "\t"]
    cells[places[layout.label_index]] = label
    return "".join(cells)
