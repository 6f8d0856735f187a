"""Read sentences or minimal pairs; the first sentence of a pair is the acceptable one."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.files.fasta import fasta_records
from fairseq_maelm.files.kinds import FASTA, JSON_LINES, TEXT, TSV, kind_of
from fairseq_maelm.files.lines import columns_in, numbered_lines, parse_record, uncompressed_name
from fairseq_maelm.options import UsageError
from fairseq_maelm.text.cleaning import clean_text, text_field

METHODS = ("original", "within_word_l2r")  # values of --method; see ``likelihood``
SIDES = ("good", "bad")  # the sentences of a minimal pair, in this order
_FIELDS = tuple(f"sentence_{side}" for side in SIDES)
# Fields with the phenomenon: the one by which BLiMP's paper groups paradigms, and a coarser one.
_PHENOMENON = ("linguistics_term", "field")


class Item(NamedTuple):
    """A single sentence, or one sentence of a minimal pair."""

    place: str  # file name and line number
    side: str  # one of ``SIDES``; empty for single sentences, as are paradigm and phenomenon
    paradigm: str
    phenomenon: str
    text: str  # cleaned
    name: str = ""  # of a record of FASTA


def input_files(paths: Sequence[Path]) -> list[Path]:
    """Replace each folder by its .jsonl files, sorted by name; refuse equal names, and sentences mixed with pairs."""
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            # By name: other files may lie in the folder.
            inside = (each for each in path.glob("[!.]*") if each.is_file())
            found = sorted(each for each in inside if uncompressed_name(each).suffix.lower() == ".jsonl")
        if not found:
            raise UsageError(f"there is no .jsonl file in {path}")
        files += found
    names = [path.name for path in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice: rename one of the files, since results show only their names")
    if len({_kind(path) in (TEXT, FASTA) for path in files}) > 1:
        raise UsageError("give either files of sentences or files of pairs (.tsv, .jsonl), not both")
    return files


def read_items(files: Sequence[Path], first: int | None = None) -> list[Item]:
    """Read at most ``first`` sentences or pairs of each file; the two sentences of a pair are adjacent."""
    items = []
    for path in files:
        kind, lines = _kind(path), numbered_lines(path, blank=False)
        if kind == FASTA:
            records = islice(fasta_records(lines, path), first)
            found = [item for each in records for item in _items(path, TEXT, each.line, each.sequence, each.name)]
        else:
            found = [item for number, line in islice(lines, first) for item in _items(path, kind, number, line)]
        if not found:
            raise ValueError(f"{path} has no sentences")
        items += found
    return items


def _kind(path: Path) -> str:
    return kind_of(path, (TEXT, TSV, JSON_LINES, FASTA))


def _items(path: Path, kind: str, number: int, line: str, name: str = "") -> Iterator[Item]:
    place = f"{path}:{number}"
    paradigm, phenomenon, texts = path.name.partition(".")[0], "", [line]
    if kind == JSON_LINES:
        record = parse_record(line, place)
        if missing := [name for name in _FIELDS if name not in record]:
            raise ValueError(f"{place}: a pair needs the fields {' and '.join(_FIELDS)}; {missing[0]} is missing")
        texts = [text_field(record, name, place) for name in _FIELDS]
        paradigm = str(record.get("UID") or paradigm)
        phenomenon = next((str(record[name]) for name in _PHENOMENON if record.get(name)), "")
    elif kind == TSV:
        texts = line.split("\t")
        if len(texts) != len(SIDES):
            raise ValueError(
                f"{place}: a pair is two sentences with a tab between them, the good one first, but this line has "
                f"{columns_in(texts)}"
            )
    for side, text in zip(SIDES if len(texts) > 1 else ("",), map(clean_text, texts)):
        if not text:
            raise ValueError(f"{place}: {f'the {side} sentence' if side else 'the line'} is empty")
        # A hidden file has no name before its suffix.
        labels = (clean_text(paradigm) or path.name, clean_text(phenomenon)) if side else ("", "")
        yield Item(f"{path.name}:{number}", side, *labels, text, clean_text(name))
