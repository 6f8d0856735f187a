"""Telling a table's header from its first example, where tables have no header and labels are learned from them."""

import re
from collections.abc import Mapping, Sequence

# Names of columns as data sets have them, without digits and signs: "sentence1", "gold_label" and "#1 String" are here.
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
    """Why the first row of a table looks like a header, or None if it looks like an example.

    It does if its cells are names of columns and its label is "label" or stands on no other row; or if its label stands
    on no other row, while there are two or more other labels and each of them stands on several.

    Args:
        texts: the row's cells besides the label.
        label: the row's label.
        counts: label -> rows of the whole table, this one included.
    """
    alone, name = counts[label] == 1, _plain(label)
    # "pos" may be a class; "label" on several lines is the header of several tables that were joined.
    named = name in _NAMES_OF_LABELS and (alone or "label" in name)
    if named and all(_plain(text) in _NAMES_OF_TEXTS for text in texts):
        cells = ", ".join(repr(cell) for cell in (*texts, label))
        return f"its cells name columns ({cells})"
    others = [count for other, count in counts.items() if other != label]
    if alone and len(others) > 1 and min(others) > 1:
        return f"its label {label!r} is on no other line, and every other label is on several"
    return None


def _plain(cell: str) -> str:
    return re.sub(r"[\W\d_]", "", cell).lower()
