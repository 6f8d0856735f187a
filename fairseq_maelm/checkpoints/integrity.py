"""Checks of checkpoint files that torch does not make.

Reason: a checkpoint is a zip archive with a CRC-32 for each record, which torch writes but does not verify, so a file
with changed bits loads without an error. torch also reads compressed records, although it never writes them; they would
let a small file fill the memory.
Versions: torch from 2.6 to at least 2.13.
Test: tests/checkpoints/test_integrity.py.
"""

import os
import zipfile
from pathlib import Path

_BLOCK = 2**22
# The first bytes of an archive, the first bytes of its last entry, and the size of that entry.
_FIRST, _LAST, _LAST_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22


def find_damage(path: Path) -> str | None:
    """Return the damage of a checkpoint file, in words that follow the file's name, or None for an intact file.

    Reads the whole file. Files of torch before 1.6 have no checksums, and None is returned for them.
    """
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "is a folder"
    if os.path.getsize(path) == 0:
        return "is empty"
    with open(path, "rb") as stream:
        begins = stream.read(len(_FIRST)) == _FIRST
        stream.seek(-min(_LAST_SIZE, os.path.getsize(path)), os.SEEK_END)
        ends = stream.read(len(_LAST)) == _LAST
    if not begins and not ends:
        return None
    return _damaged_record(path) if ends else "is truncated: its end, the list of its records, is missing"


def _damaged_record(path: Path) -> str | None:
    # A changed number in the archive's tables can make zipfile raise any exception.
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:
        return f"is damaged: the list of its records cannot be read ({error})"
    with archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                return f"holds the compressed record {_shown(record.filename)}, which torch never writes"
        for record in archive.infolist():
            try:
                with archive.open(record) as stream:
                    while stream.read(_BLOCK):
                        continue
            except Exception as error:
                return f"is damaged in the record {_shown(record.filename)} ({error})"
    return None


def _shown(name: str) -> str:
    return ascii(name[:60])
