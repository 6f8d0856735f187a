"""The normal form of text for encoding, and checks of users' texts."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_maelm.files.atomic import CorpusError

# C0 and C1 control characters that str.split does not treat as white space, and the byte order mark; in a class of
# characters of a regular expression.
CONTROL_CHARACTERS = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff"
_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")

# Characters that sentencepiece's normalization removes: zero-width and direction marks, the replacement character, and
# sentencepiece's word marker. A paragraph of only these would become an empty sequence, which fairseq reads as a blank
# line.
_LEAVES_NO_TOKEN = " \u061c\u200b\u200c\u200e\u200f\u2581\ufffd"


# A long run that may hold combining marks. These are never word characters, and none is below U+0300.
_LONG_RUN = re.compile(r"[^\w\s\x00-\u02ff]{64,}")


def _ordered(run: re.Match[str]) -> str:
    """Decompose a run of characters, and sort the marks after each base character by their combining class.

    unicodedata sorts by insertion, which takes quadratic time unless the marks are in order.
    """
    starters = 0
    keys: list[tuple[int, int, str]] = []
    for mark in "".join(unicodedata.normalize("NFD", character) for character in run[0]):
        order = unicodedata.combining(mark)
        starters += order == 0
        keys.append((starters, order, mark))
    return "".join(mark for *_, mark in sorted(keys, key=lambda key: key[:2]))


def clean_text(text: str) -> str:
    """Return the normal form of one paragraph: Unicode NFC, with single spaces between words and none at the ends.

    Control characters (C0, C1 with U+0085, the byte order mark) and Unicode white space of all kinds become spaces.
    A text that contains only characters removed by sentencepiece's normalization becomes empty. Cleaning twice equals
    cleaning once.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", _LONG_RUN.sub(_ordered, text))
    text = " ".join(_CONTROL.sub(" ", text).split())
    return text if text.strip(_LEAVES_NO_TOKEN) else ""


def checked_text(text: object, what: str = "the text") -> str:
    """Return a string unchanged; for anything else, raise a CorpusError whose message begins with ``what``."""
    if not isinstance(text, str):
        raise CorpusError(f"{what} is {_shown(text)}, not a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CorpusError(f"{what} holds half of a surrogate pair, which is not a character") from error
    return text


def text_field(record: Mapping[str, Any], name: str, place: str) -> str:
    """Return a text field of a record; for other values, raise a CorpusError that names file and line."""
    return checked_text(record[name], f"{place}: the field {name!r}")


def checked_texts(texts: object, what: str = "texts") -> list[str]:
    """Return an iterable of strings as a list; raise a CorpusError for anything else, including a single string."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise CorpusError(f"{what} must be a list of strings, not {_shown(texts)}")
    return [checked_text(text, f"number {place} of the {what}") for place, text in enumerate(texts, 1)]


def checked_examples(texts: object) -> list[tuple[str, ...]]:
    """Return examples (each a string or several strings) as a list of tuples; raise a CorpusError for anything else."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise CorpusError(f"texts must be a list of strings or of tuples of strings, not {_shown(texts)}")
    return [
        (checked_text(text, f"number {place} of the texts"),)
        if isinstance(text, str) or not isinstance(text, Iterable)
        else tuple(checked_texts(text, f"parts of number {place} of the texts"))
        for place, text in enumerate(texts, 1)
    ]


def _shown(value: object) -> str:
    shown = ascii(value) if isinstance(value, (str, bytes, int, float, type(None))) else ""
    return f"{shown[:60]} ({type(value).__name__})" if shown else type(value).__name__
