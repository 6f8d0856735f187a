"""Open a tokenizer.json, which may be untrusted, and encode text with it.

The library tokenizers executes everything in the file, even replacements that multiply text and regular expressions
that take exponential time.
"""

import base64
import json
import math
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import CorpusError, parse_json, read_regular

# The largest factor by which all steps together may lengthen a text. nmt_nfkc turns one character into up to 18.
_LONGEST = 512
# A repeated group, such as (a+)+. Published tokenizers of the supported families repeat only characters and classes.
_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")
# Keys of the file whose steps can change the length of text.
_STEPS = ("normalizer", "pre_tokenizer", "decoder")


def open_tokenizer_file(path: Path, roles: Container[int] | None = None) -> Any:
    """Open a file as a ``tokenizers.Tokenizer``; a CorpusError says why it is none, or unsafe.

    With ``roles``, the ids of special symbols, all other special tokens except that for unknown text become ordinary
    added tokens: ``encode_special_tokens`` then reads the spelling of roles as text, and only theirs.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise CorpusError(f"{path} needs the package tokenizers: pip install 'fairseq_maelm[hf]'") from error
    content = read_regular(path)
    state = parse_json(content, path)
    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises no other class of errors
        raise CorpusError(f"{path} cannot be read as a tokenizer ({error})") from error
    # The library has checked the types of all parts.
    for name in _STEPS:
        _check_steps(list(_steps(state.get(name))), f"{path}: its {name}")
    if roles is None:
        return tokenizer
    unknown = state["model"].get("unk_token")
    for token in state["added_tokens"]:
        token["special"] &= token["id"] in roles or token["content"] == unknown
    return Tokenizer.from_str(json.dumps(state))


def encode_text(tokenizer: Any, text: str) -> Any:
    """Encode a text without special symbols around it; raise a ValueError if the tokenizer fails."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        # Errors of regular expressions do not derive from Exception.
        if type(error).__name__ == "PanicException":
            raise ValueError(f"the tokenizer cannot encode {ascii(text[:40])} ({error})") from None
        raise


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps in a section of the file, in order."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _steps(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _steps(inner)


def _check_steps(steps: list[dict[str, Any]], place: str) -> None:
    for step in steps:
        regex = step.get("Regex")
        if isinstance(regex, str) and _REPEATED_GROUP.search(regex):
            raise CorpusError(
                f"{place} has a regular expression with a repeated group, whose search may never end: {regex[:60]!r}"
            )
    longer = math.prod(min(_growth(step), _LONGEST + 1) for step in steps)
    if longer > _LONGEST:
        raise CorpusError(f"{place} can make a text more than {_LONGEST} times longer")


def _growth(step: dict[str, Any]) -> float:
    """Return the largest factor by which a step can lengthen a text."""
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step["pattern"], len(step["content"])
        # A regular expression may match nothing at every position.
        return max(1.0, content / len(pattern["String"])) if pattern.get("String") else 1.0 + content
    if kind == "Prepend":
        return max(1.0, len(step["prepend"]) / 8)
    if kind == "ByteLevel":
        return 2.0
    if kind == "Precompiled":
        return _longest_of_charsmap(step["precompiled_charsmap"])
    return 1.0


def _longest_of_charsmap(encoded: str) -> float:
    """Return the length in characters of the longest replacement in sentencepiece's encoded rules.

    The rules are the size of a table (4 bytes), the table, and the replacements, each followed by a NUL.
    """
    content = base64.b64decode(encoded)
    replacements = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return max(1.0, *(len(each.decode("utf-8", "replace")) for each in replacements), 1.0)
