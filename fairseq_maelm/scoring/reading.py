"""Reading what is to be scored: sentences, or minimal pairs of which the first sentence is the acceptable one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.lines import numbered_lines, parse_record, text_field
from fairseq_maelm.text.cleaning import clean_text

# Of a minimal pair, in this order.
SIDES = ("good", "bad")
_FIELDS = tuple(f"sentence_{side}" for side in SIDES)
# The kind of phenomenon that BLiMP's paper groups paradigms by, and the coarser one.
_PHENOMENON = ("linguistics_term", "field")


class Item(NamedTuple):
    """A sentence, or one of a minimal pair.

    Attributes:
        place: name of its file and number of its line.
        side: one of ``SIDES``; empty outside of pairs.
        paradigm, phenomenon: of the pair.
        text: cleaned.
    """

    place: str
    side: str
    paradigm: str
    phenomenon: str
    text: str


def input_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are meant, a folder's .jsonl files by name in place of the folder.

    Raises:
        ValueError: a folder has none, two files have one name, or some hold pairs and others sentences.
    """
    files: list[Path] = []
    for path in paths:
        found = sorted(each for each in path.iterdir() if _kind(each) == "jsonl") if path.is_dir() else [path]
        if not found:
            raise ValueError(f"there is no .jsonl file in {path}")
        files += found
    names = [path.name for path in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is given twice: results tell files by their names")
    if len({_kind(path) == "lines" for path in files}) > 1:
        raise ValueError("give either files of sentences or files of pairs (.tsv, .jsonl), not both")
    return files


def read_items(files: Sequence[Path]) -> list[Item]:
    """Read all sentences of files, the two of a pair one after the other.

    Raises:
        ValueError: a file is empty, damaged, not UTF-8 or lacks a field; the message names file and line.
    """
    items = []
    for path in files:
        found = [item for number, line in numbered_lines(path, blank=False) for item in _items(path, number, line)]
        if not found:
            raise ValueError(f"{path} holds no sentences")
        items += found
    return items


def _kind(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "tsv" if name.endswith(".tsv") else "lines"


def _items(path: Path, number: int, line: str) -> Iterator[Item]:
    place, kind = f"{path}:{number}", _kind(path)
    paradigm, phenomenon, texts = path.name.partition(".")[0], "", [line]
    if kind == "jsonl":
        record = parse_record(line, place)
        if missing := [name for name in _FIELDS if name not in record]:
            raise ValueError(f"{place}: a pair needs the fields {' and '.join(_FIELDS)}; {missing[0]} is missing")
        texts = [text_field(record, name, place) for name in _FIELDS]
        paradigm = str(record.get("UID") or paradigm)
        phenomenon = next((str(record[name]) for name in _PHENOMENON if record.get(name)), "")
    elif kind == "tsv":
        texts = line.split("\t")
        if len(texts) != len(SIDES):
            raise ValueError(
                f"{place}: a pair is two sentences with a tab between them, the good one first; here are {len(texts)}"
            )
    for side, text in zip(SIDES if len(texts) > 1 else ("",), map(clean_text, texts)):
        if not text:
            raise ValueError(f"{place}: {f'the {side} sentence' if side else 'the line'} holds no text")
        labels = (clean_text(paradigm), clean_text(phenomenon)) if side else ("", "")
        yield Item(f"{path.name}:{number}", side, *labels, text)
