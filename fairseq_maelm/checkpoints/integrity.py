"""Integrity checks for checkpoint files, beyond torch's.

Reasons: a checkpoint is a zip archive with a CRC-32 for each record, which torch writes but does not verify, so a file
with changed bits loads without an error. torch also reads compressed and overlapping records, although it never writes
them, and with ``weights_only=True`` it still calls functions such as ``bytearray``, which would let a small file fill
the memory.
Versions: torch from 2.6 to at least 2.13.
Tests: tests/checkpoints/test_integrity.py, tests/robustness/test_costly.py.
"""

import os
import pickletools
import re
import zipfile
from pathlib import Path
from typing import BinaryIO

from fairseq_maelm.files.atomic import LFS_POINTER, is_lfs_pointer

_BLOCK = 2**22
# The first bytes of an archive, the first bytes of its last entry, and the size of that entry.
_FIRST, _LAST, _LAST_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
# Size limit of a pickle, which has all but the tensors' content: below 1 MB for 24 layers and their optimizer.
_LARGEST_PICKLE = 2**23
# Classes and functions in fairseq's checkpoints. None of them can create an object larger than the file.
_ALLOWED = re.compile(
    r"collections\.OrderedDict|argparse\.Namespace|(builtins|__builtin__)\.set|_codecs\.encode"
    r"|torch\.(cuda\.)?[A-Z]\w+Storage|torch\.(Size|device|bool|(b?float|u?int)\d+)"
    r"|torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
)
# A file of torch before 1.6 begins with this many pickles: format, version, machine, content and names of tensors.
_PICKLES_BEFORE_ZIP = 5


def find_damage(path: Path) -> str | None:
    """Describe the damage or danger in a checkpoint file, such as "is empty"; return None for a good file.

    Reads the whole file. Files of torch before 1.6 have no checksums.
    """
    return find_danger(path) or _damaged_record(path)


def weights_alone(path: Path) -> str:
    """Describe a file of weights that another library saved without their configuration, and what to do."""
    return (
        "holds weights without their configuration: give the folder of a checkpoint, which `maelm import "
        f"{path.parent} --output FOLDER` writes"
    )


def find_danger(path: Path) -> str | None:
    """Describe why a file is incomplete, or unsafe even with ``weights_only=True``; return None for a safe file.

    Reads only the list of records and the pickles, not the tensors. A safe file cannot fill the memory: loading it
    takes memory in proportion to its size.
    """
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "is a folder"
    if not path.is_file():
        return "is not a regular file"
    if os.path.getsize(path) == 0:
        return "is empty"
    if is_lfs_pointer(path):
        return LFS_POINTER
    if path.suffix == ".safetensors":
        return weights_alone(path)
    with open(path, "rb") as stream:
        begins = stream.read(len(_FIRST)) == _FIRST
        stream.seek(-min(_LAST_SIZE, os.path.getsize(path)), os.SEEK_END)
        ends = stream.read(len(_LAST)) == _LAST
        if not begins and not ends:
            stream.seek(0)
            return _danger_of_pickles(stream, _PICKLES_BEFORE_ZIP)
    return _danger_of_archive(path) if ends else "is truncated: the list of records at its end is missing"


def _danger_of_archive(path: Path) -> str | None:
    # A changed number in the archive's tables can make zipfile raise any exception.
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            for record in records:
                if record.compress_type != zipfile.ZIP_STORED:
                    return f"holds the compressed record {_shown(record.filename)}, which torch never writes"
            held = sum(record.file_size for record in records)
            if held > os.path.getsize(path):
                return f"holds records of {held:,} bytes that overlap, which torch never writes"
            for record in records:
                if record.filename.endswith(".pkl"):
                    if record.file_size > _LARGEST_PICKLE:
                        held_in = _shown(record.filename)
                        return f"holds {record.file_size:,} bytes of settings in {held_in}, too many for a checkpoint"
                    with archive.open(record) as stream:
                        if danger := _danger_of_pickles(stream, 1):  # type: ignore[arg-type]
                            return danger
    except Exception as error:
        return f"is damaged: the list of its records cannot be read ({error})"
    return None


def _danger_of_pickles(stream: BinaryIO, number: int) -> str | None:
    """Describe the first class or function outside of ``_ALLOWED`` in a stream of pickles; return None without one.

    Reads ``number`` pickles. Checking ``GLOBAL`` suffices: torch's parser supports no other operation that names a
    class or function.
    """
    try:
        for _ in range(number):
            for operation, argument, _place in pickletools.genops(stream):
                name = str(argument).replace(" ", ".")
                if operation.name == "GLOBAL" and not _ALLOWED.fullmatch(name):
                    return f"holds {_shown(name)[1:-1]}, which is not plain data and is not loaded"
    except Exception:  # the errors of pickletools are of all kinds
        return "cannot be read as a checkpoint: its list of contents is damaged"
    return None


def _damaged_record(path: Path) -> str | None:
    """Describe the first record that differs from its checksum; return None if all agree."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
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
