"""The normal form of text: one for every paragraph that is encoded, wherever it comes from."""

import re
import unicodedata

# C0 and C1 controls that str.split does not already take for white space, and the byte order mark.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")

# What sentencepiece's own normalization leaves nothing of: zero-width and direction marks, the replacement character
# and its word marker. A paragraph of nothing else would become an empty sequence, which fairseq reads as a blank line.
_LEAVES_NO_TOKEN = " \u061c\u200b\u200c\u200e\u200f\u2581\ufffd"


def clean_text(text: str) -> str:
    """Return the normal form of one paragraph: Unicode NFC, no control characters, single spaces, none at the ends.

    Control characters (C0, C1 with U+0085, the byte order mark) and every kind of Unicode white space become one
    ordinary space. A text of which sentencepiece would leave nothing becomes empty. Cleaning twice changes nothing.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = " ".join(_CONTROL.sub(" ", text).split())
    return text if text.strip(_LEAVES_NO_TOKEN) else ""
