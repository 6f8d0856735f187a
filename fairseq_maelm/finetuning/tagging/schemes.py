"""Entities as labels of words in IOB1, IOB2, IOBES and BILOU, and metrics of labels.

In all schemes (Ramshaw and Marcus, 1995; Tjong Kim Sang and Veenstra, 1999) the label of a word is O outside of
entities, and ``prefix-X`` in an entity of type X. The prefixes are:

    IOB1   I, but B for the first word of an entity that directly follows an entity of the same type
    IOB2   B for the first word of every entity, I for the others
    IOBES  S for an entity of one word; otherwise B for its first, E for its last and I for the words between them
    BILOU  IOBES with the letters U and L instead of S and E
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
PLAIN = "plain"
PREFIXES = {"iob1": ("B", "I"), "iob2": ("B", "I"), "iobes": ("B", "I", "E", "S"), "bilou": ("B", "I", "L", "U")}
_LAST, _SINGLE = ("E", "L"), ("S", "U")


class Entity(NamedTuple):
    """An entity's type, and its words [start, stop) in the sentence."""

    kind: str
    start: int
    stop: int


class SchemeError(ValueError):
    """A label that the scheme does not allow at this word; ``word`` is the word's index in the sentence."""

    def __init__(self, word: int, message: str) -> None:
        super().__init__(message)
        self.word = word


def split_label(label: str) -> tuple[str, str]:
    """Split a label into prefix and type (empty for O); raise ValueError for labels of any other form."""
    if label == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = label.partition("-")
    if len(prefix) != 1 or not hyphen or not kind:
        raise ValueError(f"the label {label!r} is neither O nor of the form B-TYPE")
    return prefix, kind


def entities(labels: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, given labels in any scheme, even if the labels break its rules.

    As in the CoNLL evaluation, an entity begins at B and S, after E, S and O, and where the type changes; U and L count
    as S and E.
    """
    found: list[Entity] = []
    previous, kind, start = OUTSIDE, "", 0
    for word, label in enumerate([*labels, OUTSIDE]):
        prefix, own = split_label(label)
        inside = previous not in (OUTSIDE, *_LAST, *_SINGLE) and prefix in ("I", *_LAST) and own == kind
        if previous != OUTSIDE and not inside:
            found.append(Entity(kind, start, word))
        if not inside:
            start = word
        previous, kind = prefix, own
    return found


def written(spans: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Return the labels of a sentence of ``length`` words, given non-overlapping entities in any order."""
    labels = [OUTSIDE] * length
    last: Entity | None = None
    for span in sorted(spans, key=lambda entity: entity.start):
        first, inner, end = "B", "I", "I"
        if scheme == "iob1":
            first = "B" if last is not None and last.stop == span.start and last.kind == span.kind else "I"
        elif scheme in ("iobes", "bilou"):
            *_, end, single = PREFIXES[scheme]
            first = single if span.stop - span.start == 1 else "B"
        prefixes = [inner] * (span.stop - span.start)
        prefixes[-1] = end
        prefixes[0] = first
        labels[span.start : span.stop] = [f"{prefix}-{span.kind}" for prefix in prefixes]
        last = span
    return labels


def check(labels: Sequence[str], scheme: str) -> None:
    """Raise SchemeError for the first label in a sentence that violates the scheme."""
    for word, label in enumerate(labels):
        try:
            prefix, _ = split_label(label)
        except ValueError as error:
            raise SchemeError(word, str(error)) from error
        if prefix != OUTSIDE and prefix not in PREFIXES[scheme]:
            raise SchemeError(word, f"the prefix of the label {label!r} does not exist in {scheme.upper()}")
    right = written(entities(labels), len(labels), scheme)
    for word, (label, expected) in enumerate(zip(labels, right, strict=True)):
        if label != expected:
            raise SchemeError(word, f"the label {label!r} must be {expected!r} in {scheme.upper()}")


def convert(labels: Sequence[str], scheme: str) -> list[str]:
    """Convert labels in any scheme, valid or not, to another scheme; "plain" changes nothing."""
    return list(labels) if scheme == PLAIN else written(entities(labels), len(labels), scheme)


def detect(sentences: Sequence[Sequence[str]]) -> str:
    """Return the scheme of a file's labels.

    It is "plain" if any label is not O or an entity's, or if all labels are O; "iobes" if E or S is used; "bilou" if L
    or U is used; "iob2" if all sentences are valid in IOB2; otherwise "iob1".
    """
    seen = {label for labels in sentences for label in labels}
    try:
        prefixes = {split_label(label)[0] for label in seen} - {OUTSIDE}
    except ValueError:
        return PLAIN
    known = [scheme for scheme in ("iob2", "iobes", "bilou") if prefixes and prefixes <= set(PREFIXES[scheme])]
    if not known or known[0] != "iob2":
        return known[0] if known else PLAIN
    for labels in sentences:
        try:
            check(labels, "iob2")
        except SchemeError:
            return "iob1"
    return "iob2"


def all_labels(kinds: Iterable[str], scheme: str) -> list[str]:
    """Return O, followed by the scheme's labels for these entity types in sorted order."""
    return [OUTSIDE, *sorted(f"{prefix}-{kind}" for kind in set(kinds) for prefix in PREFIXES[scheme])]


ACCURACY = ("accuracy",)
ENTITY_METRICS = ("accuracy", "precision", "recall", "f1")


def score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], has_entities: bool) -> dict[str, float]:
    """Return the metrics of a whole set, in percent.

    These are the ``accuracy`` of words and, for entities, the micro-averaged ``precision``, ``recall`` and ``f1``. An
    entity is correct if its type and both its ends are correct. As in CoNLL's evaluation, labels that break the rules
    of their scheme still form entities. A metric with denominator 0 is 0.
    """
    pairs = [pair for own, other in zip(gold, predicted, strict=True) for pair in zip(own, other, strict=True)]
    metrics = {"accuracy": 100.0 * sum(own == other for own, other in pairs) / max(1, len(pairs))}
    if has_entities:
        expected, found = (
            {(number, entity) for number, labels in enumerate(sentences) for entity in entities(labels)}
            for sentences in (gold, predicted)
        )
        right = 100.0 * len(expected & found)
        metrics["precision"] = right / max(1, len(found))
        metrics["recall"] = right / max(1, len(expected))
        metrics["f1"] = 2 * right / max(1, len(expected) + len(found))
    return metrics
