"""The reader of FASTA: records of a line with ">" and a name, and of the lines of a sequence below it."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fairseq_maelm.files.atomic import CorpusError


class Record(NamedTuple):
    """A sequence."""

    line: int  # number of the line with its name
    name: str  # first word of that line
    sequence: str  # its lines without white space between them, and without "*", the stop, at its end


def fasta_records(lines: Iterable[tuple[int, str]], path: Path, invalid: list[str] | None = None) -> Iterator[Record]:
    """Yield the records of numbered lines.

    A record without a sequence is a CorpusError that names the line; with ``invalid``, its message is added there.
    """
    begun, name, parts = 0, "", list[str]()
    for number, line in chain(lines, [(-1, ">")]):
        if not line.startswith(">"):
            parts += line.split()
            if parts and not begun:
                raise CorpusError(f"{path}:{number}: a FASTA file begins with '>' and the name of a sequence")
            continue
        sequence = "".join(parts).rstrip("*")
        if sequence:
            yield Record(begun, name, sequence)
        elif begun:
            message = f"{path}:{begun}: the record {name!r} has no sequence: remove it"
            if invalid is None:
                raise CorpusError(message)
            invalid.append(message)
        begun, name, parts = number, next(iter(line[1:].split()), ""), []
