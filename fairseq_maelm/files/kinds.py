"""Detect the type of a user's file from its name and its first lines, for all readers."""

import re
from pathlib import Path

from fairseq_maelm.files.atomic import CorpusError, parse_json
from fairseq_maelm.files.lines import first_bytes, uncompressed_name

TEXT, DOCUMENTS, JSON_LINES, JSON = "text", "documents", "jsonl", "json"
TSV, CSV, CONLLU, FASTA = "tsv", "csv", "conllu", "fasta"
TABLES = (TSV, CSV, JSON_LINES, JSON, FASTA, TEXT)

_SUFFIXES = {".jsonl": JSON_LINES, ".ndjson": JSON_LINES, ".json": JSON, ".tsv": TSV, ".csv": CSV, ".conllu": CONLLU}
_SUFFIXES |= dict.fromkeys((".fasta", ".faa", ".fna", ".fas"), FASTA)
_NEVER_READ = {
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".xlsx"), "a table in a format that is not read: write each row "
                    "as a record to a .jsonl file, as pandas and `datasets` do by to_json"),
    **dict.fromkeys((".zip", ".zst", ".7z", ".tar"), "compressed in a way that is not read: unpack it, or compress its "
                    "files by gzip, xz or bzip2"),
}  # fmt: skip
_TABLE = (
    "a table",
    "write its texts to a .txt file, or each row as a record to a .jsonl file; `maelm prepare sentences` reads tables "
    "for fine-tuning",
)
# What each kind is called where it is refused, and what to do.
_REFUSED = {
    TEXT: ("plain text", "give a file of another type"),
    TSV: _TABLE,
    CSV: _TABLE,
    JSON: ("one JSON value", "write one record per line to a .jsonl file"),
    JSON_LINES: ("JSON lines", "write the texts to a .txt file"),
    CONLLU: ("CoNLL-U", "write its sentences to a .txt file; `maelm prepare tagging` reads it for fine-tuning"),
    FASTA: ("FASTA", "write its sequences to a .txt file; `maelm prepare corpus`, `score` and `predict` read it"),
    DOCUMENTS: ("the output of WikiExtractor", "remove the lines <doc ...>; `maelm prepare corpus` reads it"),
}

_DOCUMENT = re.compile(rb"<doc [^\n>]*>\s*\n")
_JSON_START = re.compile(rb'(\[\s*)?\{\s*("(?:[^"\\\n]|\\.)*"\s*:|\}\s*(?:[],\n]|\Z))')
_CONLLU_LINES = re.compile(rb"(?:#[^\n]*\n|\s*\n)*1(-\d+)?(\t[^\t\n]+){9}\r?\n")
# A line of a sequence: capitals, or nucleotides in any case, with stops and gaps.
_SEQUENCE = re.compile(rb"[A-Z*.-]+|[ACGTUNacgtun*.-]+")
# Letters in the first line of a sequence by which a file of another name is FASTA.
_LETTERS = 10


def kind_of(path: Path, accepted: tuple[str, ...], remedy: str | None = None) -> str:
    """Tell what a file holds: ``TEXT``, ``DOCUMENTS`` of WikiExtractor, or another kind of those above.

    The suffix decides, in any case and also before .gz, .xz or .bz2. For other suffixes the first lines decide: a file
    is FASTA if all of them are names or sequences. Other kinds than ``accepted`` are refused with ``remedy``, or the
    usual one of the kind.
    """
    suffix = uncompressed_name(path).suffix.lower()
    if suffix in _NEVER_READ:
        raise CorpusError(f"{path} is {_NEVER_READ[suffix]}")
    kind = _SUFFIXES.get(suffix) or _kind_of_content(path, suffix == ".fa")
    if kind not in accepted:
        what, usual = _REFUSED[kind]
        raise CorpusError(f"{path} is {what}: {remedy or usual}")
    return kind


def _kind_of_content(path: Path, fasta: bool) -> str:
    """Tell the kind from the first lines; with ``fasta``, the suffix is that of FASTA, or of a text in Persian."""
    head = first_bytes(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    if (fasta and head[:1] in (b"", b">")) or _is_fasta(head):
        return FASTA
    if _DOCUMENT.match(head):
        return DOCUMENTS
    if _CONLLU_LINES.match(head):
        return CONLLU
    found = _JSON_START.match(head)
    if found is None:
        return TEXT
    line, end, _ = head.partition(b"\n")
    return JSON if found[1] or (end and not _is_json(line)) else JSON_LINES


def _is_fasta(head: bytes) -> bool:
    """Return whether all lines are names or sequences; quotations in a mail begin with ">", too."""
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    if len(lines) < 2 or not lines[0].startswith(b">") or len(lines[1]) < _LETTERS or lines[1].startswith(b">"):
        return False
    return all(line.startswith(b">") or _SEQUENCE.fullmatch(line) for line in lines)


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line, "")
    except CorpusError:
        return False
    return True
