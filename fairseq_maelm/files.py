"""Files that are either whole or absent: atomic writing, checksums and a lock on a folder."""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

logger = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"

# What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


class CorpusError(ValueError):
    """A setting, an input file or an output folder is not as it must be; the message says which and what to do."""


def synchronize_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut, as fsync does for the content of a file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets the name ``path`` only when the block ends without an exception.

    Until then its name ends in ``.partial``, so that a run killed at any moment leaves no half file under a real name.
    The process number in that name keeps the last breath of an orphaned worker apart from the run that resumes.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    with open(partial, "wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
    synchronize_folder(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Remove what killed runs left of unfinished files anywhere below ``folder``."""
    for path in folder.rglob(f"*{PARTIAL_SUFFIX}"):
        path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole small file atomically."""
    with atomic_file(path) as stream:
        stream.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` atomically as indented JSON."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode("ascii"))


def read_json(path: Path) -> Any:
    """Read a JSON file that this package wrote.

    Raises:
        CorpusError: the file is not JSON, so something else wrote or damaged it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorpusError(f"{path} is damaged ({error}); remove its folder and prepare it again") from error


def refuse_existing(*paths: Path, can_replace: bool = False) -> None:
    """Refuse to write over what is there.

    Args:
        paths: to be written.
        can_replace: whether the command has an option --replace for that.

    Raises:
        FileExistsError: names the first that exists.
    """
    for path in paths:
        if path.exists():
            kind = "folder" if path.is_dir() else "file"
            choice = "give --replace to rename this one" if can_replace else "remove it first"
            raise FileExistsError(f"{path} exists already: name another {kind}, or {choice}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


class FolderLock:
    """An exclusive lock on a folder, which the operating system gives back even when its holder is killed.

    The lock is the process's own: what it forks does not inherit it. (The library filelock takes flock, which workers
    inherit: those of a killed run would keep the next one out.) The file exists only while somebody holds the lock or
    after its holder was killed, and says who that is. Program and folder are for the message to the next one.
    """

    # A process gets its own lock a second time, and loses it when it closes any descriptor of the file.
    _held: ClassVar[set[str]] = set()

    def __init__(self, path: Path, program: str, folder: Path) -> None:
        self._path, self._program, self._folder = path, program, folder
        self._descriptor = -1

    def __enter__(self) -> "FolderLock":
        """Take the lock.

        Raises:
            CorpusError: somebody has it; the message says who.
        """
        key = os.path.realpath(self._path)
        if key in self._held:
            raise self._refusal(f"it is this process, {os.getpid()}")
        while not self._take():
            os.close(self._descriptor)
        self._held.add(key)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder.encode("utf-8"), 0)
        return self

    def _take(self) -> bool:
        """Lock the file of that name; return false if its last holder has just taken the name away."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                logger.warning("no locks on the file system of %s: nothing keeps a second run out of it", self._folder)
                return True
            holder = self._holder()
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise self._refusal(holder) from error
            raise
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        return False

    def _holder(self) -> str:
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
            return f"it is process {holder['process']} on {holder['host']}, since {holder['since']}"
        except (ValueError, KeyError, TypeError):
            return "it has just begun"

    def _refusal(self, holder: str) -> CorpusError:
        return CorpusError(
            f"another {self._program} is writing to {self._folder}; {holder}: wait for it, stop it, or name another "
            "folder"
        )

    def __exit__(self, *exception: object) -> None:
        # Under the lock, so that this is no other holder's file.
        self._path.unlink(missing_ok=True)
        self._held.discard(os.path.realpath(self._path))
        os.close(self._descriptor)
