"""What is wrong with a checkpoint file: the checks that torch leaves out.

Reason: a checkpoint is a zip archive with a CRC-32 for each record, which torch writes and never compares. A file whose
bits have changed therefore loads without a word. Records that are compressed, which torch reads and never writes, would
let a small file fill the memory.
Versions: torch from 2.6 to at least 2.13.
Test: tests/fairseq_fixes/test_damage.py.
"""

import os
import zipfile
from pathlib import Path

_BLOCK = 2**22
# The first bytes of an archive, and those of its last entry, whose size they tell.
_FIRST, _LAST, _LAST_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22


def find_damage(path: Path) -> str | None:
    """Say in a few words what is wrong with a checkpoint file, to follow its name; None for a whole file.

    Reads the whole file. The format of torch before 1.6 has no checksums: only loading can tell, and None is returned.
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
    # Whatever a changed number in the archive's own tables leads zipfile to raise, the file is damaged.
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
