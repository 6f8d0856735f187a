"""The template language of Gao et al. (2021), and the rendering of templates with sentences.

A template is text with variables between asterisks, such as ``*cls**sent_0*_It_was*mask*.*sep+*``:

    *cls*              <s>, at the start
    *mask*             the place of the label word, with the space before it; exactly one
    *sep* or *sep+*    </s> (the second is for models with segment embeddings, which are not used here)
    *sent_0*           the first sentence; *sent_1* is the second, and so on
    *+sent_0*          with a space before it
    *sentl_0*          with its first character in lower case; *sentu_0* in upper case
    *sent-_0*          without its last character, usually the full stop

Modifiers combine in this order: *+sentl-_1*. In the text between variables, "_" stands for a space. <mask> and [MASK],
the spellings of models, are other names of *mask*.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairseq_maelm.text.cleaning import clean_text

Kind = Literal["cls", "mask", "sep", "sentence", "text"]

_SENTENCE = re.compile(r"(?P<space>\+?)sent(?P<case>[lu]?)(?P<cut>-?)_(?P<number>\d+)")
_SPECIAL: dict[str, Kind] = {"cls": "cls", "mask": "mask", "sep": "sep", "sep+": "sep"}


@dataclass(frozen=True)
class Part:
    """A part of a template: text with underscores replaced by spaces, or a variable with its modifiers."""

    kind: Kind
    text: str = ""
    number: int = 0
    space: bool = False
    case: str = ""
    cut: bool = False


class Segment(NamedTuple):
    """A segment of a sequence: a special symbol, or text that is tokenized separately."""

    kind: Kind  # "text" for text of the template
    text: str = ""  # without white space at its ends; "" for special symbols
    starts_word: bool = False  # whether the text follows a space or the start of a sequence
    number: int = 0  # of the sentence


def parse_template(template: str) -> tuple[Part, ...]:
    """Split a template into its parts; raise ValueError if the template is invalid."""
    pieces = re.sub(r"<mask>|\[MASK\]", "*mask*", template).split("*")
    if len(pieces) % 2 == 0:
        raise ValueError(f"the template {template!r} has an unpaired asterisk: write variables as *name*")
    parts = []
    for place, piece in enumerate(pieces):
        if place % 2:
            parts.append(_variable(piece, template))
        elif piece:
            parts.append(Part("text", piece.replace("_", " ")))
    kinds = [part.kind for part in parts]
    if kinds.count("mask") != 1:
        raise ValueError(
            f"the template {template!r} has {kinds.count('mask')} variables *mask*, but must have exactly one"
        )
    if kinds[0] != "cls" or kinds.count("cls") != 1:
        raise ValueError(f"the template {template!r} must begin with *cls* and have no other *cls*")
    numbers = {part.number for part in parts if part.kind == "sentence"}
    if not numbers or numbers != set(range(max(numbers) + 1)):
        raise ValueError(f"the template {template!r} must have *sent_0*, and number further sentences without gaps")
    return tuple(parts)


def _variable(name: str, template: str) -> Part:
    if name in _SPECIAL:
        return Part(_SPECIAL[name])
    if match := _SENTENCE.fullmatch(name):
        space, case, cut, number = match.groups()
        return Part("sentence", number=int(number), space=bool(space), case=case, cut=bool(cut))
    reason = "demonstrations are not supported" if name.startswith("label") else "see the template language"
    raise ValueError(f"the template {template!r} has the unknown variable *{name}*: {reason}")


def sentences_of(parts: Sequence[Part]) -> int:
    """Return the number of sentences that a template requires."""
    return 1 + max(part.number for part in parts if part.kind == "sentence")


def render(parts: Sequence[Part], sentences: Sequence[str], masks: int = 1) -> list[Segment]:
    """Put sentences, cleaned like pretraining text, into a template and return the segments of the sequence.

    White space between two parts is tokenized with the second, so that a trailing space is not a separate token. The
    mask, or ``masks`` for a label word of several pieces, stands for a word with its preceding space, like <mask> in
    texts for the hub interface.
    """
    if len(sentences) != sentences_of(parts):
        raise ValueError(f"the template has {sentences_of(parts)} sentences, but the example has {len(sentences)}")
    segments: list[Segment] = []
    starts_word = True
    for part in parts:
        if part.kind in ("cls", "mask", "sep"):
            segments += [Segment(part.kind)] * (masks if part.kind == "mask" else 1)
            starts_word = part.kind != "mask"
            continue
        text = part.text if part.kind == "text" else _sentence(part, sentences[part.number])
        starts_word = starts_word or part.space or text[:1].isspace()
        words = " ".join(text.split())
        if words:
            segments.append(Segment(part.kind, words, starts_word, part.number))
        starts_word = text[-1:].isspace() or (starts_word and not words)
    return segments


def _sentence(part: Part, sentence: str) -> str:
    text = clean_text(sentence)
    if part.case:
        text = (text[:1].lower() if part.case == "l" else text[:1].upper()) + text[1:]
    return text[:-1] if part.cut else text


def spell(segments: Sequence[Segment]) -> str:
    """Return a rendered prompt as text with <s>, <mask> and </s>, for logs and ``fill_mask``."""
    spelled = {"cls": "<s>", "mask": " <mask>", "sep": "</s>"}
    texts = []
    for place, segment in enumerate(segments):
        first = place == 0 or segments[place - 1].kind in ("cls", "sep")
        space = " " if segment.starts_word and not first else ""
        texts.append(spelled.get(segment.kind) or space + segment.text)
    return "".join(texts)
