"""Files that are either whole or absent: atomic writing, checksums and a lock on a folder."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_maelm.corpus.errors import CorpusError

PARTIAL_SUFFIX = ".partial"


def synchronise_folder(folder: Path) -> None:
    """Makes the renames inside ``folder`` survive a power cut, as fsync does for the content of a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets the name ``path`` only when the block ends without an exception.

    Until then its name ends in ``.partial``, so that a run killed at any moment leaves no half file under a real name.
    The process number in that name keeps the last breath of an orphaned worker apart from the run that resumes.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    with open(partial, "wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
    synchronise_folder(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Removes what killed runs left of unfinished files anywhere below ``folder``."""
    for path in folder.rglob(f"*{PARTIAL_SUFFIX}"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole small file atomically."""
    with atomic_file(path) as stream:
        stream.write(content)


def write_json(path: Path, content: Any) -> None:
    """Writes ``content`` atomically as indented JSON."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode("ascii"))


def read_json(path: Path) -> Any:
    """Reads a JSON file that this package wrote.

    Raises:
        CorpusError: the file is not JSON, so something else wrote or damaged it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorpusError(f"{path} is damaged ({error}); remove its folder and prepare the corpus again") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content as 64 hexadecimal digits, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


class FolderLock:
    """An exclusive lock on a folder, which the operating system gives back even when its holder is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> "FolderLock":
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise CorpusError(
                f"another `maelm prepare` is writing to {self._path.parent.parent}; wait for it or stop it"
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def forget(self) -> None:
        """Closes the copy of the lock that a forked worker inherits, so that no orphan keeps the folder locked."""
        os.close(self._descriptor)
