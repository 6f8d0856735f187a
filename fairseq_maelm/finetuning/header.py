"""Detect a header row in a table of examples; its last cell would otherwise become one more label."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_maelm.files.atomic import CorpusError

# Usual names of columns without digits and punctuation, so that "sentence1", "gold_label" and "#1 String" are covered.
_OF_TEXTS = """
answer body comment content context document form hypothesis message passage premise query question review sentence
sentences string text texts title token tokens tweet utterance word words
"""
_OF_LABELS = """
category chunk chunktag class classes deprel entity feats gold goldlabel intent isduplicate label labels ner nertag
nertags pos postag postags quality rating score sentiment similarity tag tags target topic upos xpos y
"""
_NAMES_OF_TEXTS, _NAMES_OF_LABELS = frozenset(_OF_TEXTS.split()), frozenset(_OF_LABELS.split())


def header_reason(texts: Sequence[str], label: str, counts: Mapping[str, int]) -> str | None:
    """Return the reason why the first row of a table looks like a header, or None if it looks like an example.

    The row looks like a header in two cases: all its cells are usual column names, and its label is unique or contains
    "label"; or its label is unique, and every other label (at least two) occurs several times.

    Args:
        texts: cells of the row without its label.
        label: the row's label.
        counts: number of rows for each label of the table, this row included.
    """
    alone, name = counts[label] == 1, _plain(label)
    # "pos" may be a class, but "label" on several lines comes from several tables that were joined.
    named = name in _NAMES_OF_LABELS and (alone or "label" in name)
    if named and all(_plain(text) in _NAMES_OF_TEXTS for text in texts):
        cells = ", ".join(repr(cell) for cell in (*texts, label))
        return f"its cells name columns ({cells})"
    others = [count for other, count in counts.items() if other != label]
    if alone and len(others) > 1 and min(others) > 1:
        return f"its label {label!r} is on this line only, but every other label is on several lines"
    return None


def refuse_header(place: str, cells: Any, certain: bool = False) -> None:
    """Raise a CorpusError if all cells of a table's first row are usual names of columns, or if ``certain``."""
    names = _NAMES_OF_TEXTS | _NAMES_OF_LABELS | {"id", "index"}
    if certain or (not isinstance(cells, dict) and all(_plain(cell) in names for cell in cells)):
        raise CorpusError(f"{place} looks like a header: name the columns with --text and --label, or remove the line")


def _plain(cell: str) -> str:
    return re.sub(r"[\W\d_]", "", cell).lower()
