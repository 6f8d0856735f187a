"""Entities as labels of words: IOB1, IOB2 and IOBES (Ramshaw and Marcus, 1995; Tjong Kim Sang and Veenstra, 1999).

In all three a word outside of entities is O and a word of an entity of type X is ``prefix-X``. They differ in the
prefixes:

    IOB1   I, but B for the first word of an entity that directly follows another one of its type
    IOB2   B for the first word of every entity, I for the others
    IOBES  S for an entity of one word; otherwise B for its first, E for its last and I for the words between them
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
PLAIN = "plain"
PREFIXES = {"iob1": ("B", "I"), "iob2": ("B", "I"), "iobes": ("B", "I", "E", "S")}


class Entity(NamedTuple):
    """Words [start, stop) of a sentence, and the entity's type."""

    kind: str
    start: int
    stop: int


class SchemeError(ValueError):
    """A label that its scheme does not allow in its place; ``word`` is its place in the sentence, from 0."""

    def __init__(self, word: int, message: str) -> None:
        super().__init__(message)
        self.word = word


def split_label(label: str) -> tuple[str, str]:
    """Split a label into prefix and type; the type of O is empty."""
    if label == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = label.partition("-")
    if len(prefix) != 1 or not hyphen or not kind:
        raise ValueError(f"the label {label!r} is neither O nor of the form B-TYPE")
    return prefix, kind


def entities(labels: Sequence[str]) -> list[Entity]:
    """Read the entities of a sentence in any of the schemes, also from labels that break its rules.

    The rules are those of the CoNLL evaluation, which score a model's labels as they are: an entity begins at B and S,
    after E and S, after O, and where the type changes.
    """
    found: list[Entity] = []
    previous, kind, start = OUTSIDE, "", 0
    for word, label in enumerate([*labels, OUTSIDE]):
        prefix, own = split_label(label)
        inside = previous not in (OUTSIDE, "E", "S") and prefix in ("I", "E") and own == kind
        if previous != OUTSIDE and not inside:
            found.append(Entity(kind, start, word))
        if not inside:
            start = word
        previous, kind = prefix, own
    return found


def written(spans: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Write entities that do not overlap, in any order, as the labels of a sentence of ``length`` words."""
    labels = [OUTSIDE] * length
    last: Entity | None = None
    for span in sorted(spans, key=lambda entity: entity.start):
        first, inner, end = "B", "I", "I"
        if scheme == "iob1":
            first = "B" if last is not None and last.stop == span.start and last.kind == span.kind else "I"
        elif scheme == "iobes":
            first, end = ("S" if span.stop - span.start == 1 else "B"), "E"
        words = [inner] * (span.stop - span.start)
        words[-1] = end
        words[0] = first
        labels[span.start : span.stop] = [f"{prefix}-{span.kind}" for prefix in words]
        last = span
    return labels


def check(labels: Sequence[str], scheme: str) -> None:
    """Refuse labels of a sentence that are not written in a scheme."""
    for word, label in enumerate(labels):
        try:
            prefix, _ = split_label(label)
        except ValueError as error:
            raise SchemeError(word, str(error)) from error
        if prefix != OUTSIDE and prefix not in PREFIXES[scheme]:
            raise SchemeError(word, f"the label {label!r} has a prefix that {scheme.upper()} does not know")
    right = written(entities(labels), len(labels), scheme)
    for word, (label, expected) in enumerate(zip(labels, right, strict=True)):
        if label != expected:
            raise SchemeError(word, f"the label {label!r} must be {expected!r} in {scheme.upper()}")


def convert(labels: Sequence[str], scheme: str) -> list[str]:
    """Write the entities of labels in any scheme, valid or not, in another one; plain labels stay as they are."""
    return list(labels) if scheme == PLAIN else written(entities(labels), len(labels), scheme)


def detect(sentences: Sequence[Sequence[str]]) -> str:
    """Tell the scheme of a file by its labels.

    It is "plain" if some label is neither O nor of the form B-TYPE, with one of the letters B, I, E and S, or if all
    are O; "iobes" if E or S occur; "iob2" if all sentences are valid in it; otherwise "iob1".
    """
    seen = {label for labels in sentences for label in labels}
    try:
        prefixes = {split_label(label)[0] for label in seen} - {OUTSIDE}
    except ValueError:
        return PLAIN
    if not prefixes or not prefixes <= set(PREFIXES["iobes"]):
        return PLAIN
    if prefixes & {"E", "S"}:
        return "iobes"
    for labels in sentences:
        try:
            check(labels, "iob2")
        except SchemeError:
            return "iob1"
    return "iob2"


def all_labels(kinds: Iterable[str], scheme: str) -> list[str]:
    """Return O, and sorted every label that entities of the given types can have in a scheme."""
    return [OUTSIDE, *sorted(f"{prefix}-{kind}" for kind in set(kinds) for prefix in PREFIXES[scheme])]
