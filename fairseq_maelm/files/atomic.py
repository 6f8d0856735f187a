"""Atomic writing of files, checksums, and a lock for folders."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

logger = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"
_BLOCK = 2**22
# The end of the temporary names in ``atomic_file``.
_OF_ATOMIC_FILE = re.compile(rf"\.\d+{re.escape(PARTIAL_SUFFIX)}\Z")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What stands in place of a file, at most 1,024 bytes long.
LFS_POINTER = "is a Git LFS pointer, which stands for the file: `git lfs pull` in its repository fetches the file"
_LARGEST_POINTER = 1024

# Errors from file systems that do not support locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


class CorpusError(ValueError):
    """A setting, an input file or an output folder is wrong."""


def synchronize_folder(folder: Path) -> None:
    """Call fsync on a folder, so that renames in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, and rename it to ``path`` if the ``with`` block ends without an exception.

    The temporary name ends in ``.partial``, so a killed run leaves no incomplete file under the final name. The name
    includes the process id, so an orphaned worker cannot write to the next run's file.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        with _open_locked(partial) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(partial, path)
    except BaseException as error:
        # The error for a full disk names no file, and the temporary name means nothing to a user.
        if isinstance(error, OSError) and error.filename in (
            (None,) if error.errno in NO_SPACE else (partial, str(partial))
        ):
            error.filename = str(path)
        partial.unlink(missing_ok=True)
        raise
    synchronize_folder(path.parent)


def _open_locked(path: Path) -> BinaryIO:
    """Open a file for writing and lock it, so that other processes do not delete it as a killed run's leftover."""
    while True:
        stream = open(path, "wb")  # noqa: SIM115
        _lock(stream)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                return stream
        stream.close()


def _lock(stream: BinaryIO) -> bool:
    """Lock a file until it is closed; return False if that is not possible."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_partial_files(folder: Path, name: str = "", deep: bool = True) -> None:
    """Remove killed runs' unfinished files with names that begin with ``name``; if ``deep``, also in subfolders."""
    pattern = f"{name}*{PARTIAL_SUFFIX}"
    for path in folder.rglob(pattern) if deep else folder.glob(pattern):
        # Other programs have unfinished files with this suffix too, but without a process id.
        if not _OF_ATOMIC_FILE.search(path.name):
            continue
        # A file that is being written is locked.
        with contextlib.suppress(FileNotFoundError), open(path, "r+b") as stream:
            if _lock(stream):
                path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically."""
    with atomic_file(path) as stream:
        stream.write(content)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content atomically; an error for a full disk names the target, and not the source."""
    with open(source, "rb") as whole, atomic_file(target) as stream:
        shutil.copyfileobj(whole, stream, _BLOCK)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` atomically as indented JSON."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode("ascii"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return record


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def parse_json(content: bytes | str, place: object, strict: bool = False) -> Any:
    """Parse JSON; raise a CorpusError that names ``place`` if it is invalid.

    ``strict`` is for users' data: it refuses NaN, Infinity, and keys that are given twice.
    """
    hooks: dict[str, Any] = {"object_pairs_hook": _unique, "parse_constant": _no_number} if strict else {}
    try:
        return json.loads(content, **hooks)
    except RecursionError:
        raise CorpusError(f"{place} is nested too deeply for a JSON file") from None
    except ValueError as error:
        raise CorpusError(f"{place} is not JSON ({error}): it is damaged, or the wrong file") from error


def refuse_special_files(paths: Iterable[Path]) -> None:
    """Raise a CorpusError if a path is a device, a socket or a FIFO, whose end may never come, or a Git LFS pointer."""
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise CorpusError(f"{path} is not a regular file: replace it with one")
        if is_lfs_pointer(path):
            raise CorpusError(f"{path} {LFS_POINTER}")


def is_lfs_pointer(path: Path) -> bool:
    """Return whether Git has left a few lines in place of a large file."""
    if not path.is_file() or path.stat().st_size > _LARGEST_POINTER:
        return False
    return path.read_bytes().startswith(b"version https://git-lfs")


def read_regular(path: Path) -> bytes:
    """Read a file; raise a CorpusError if it is not a regular file."""
    refuse_special_files([path])
    return path.read_bytes()


def read_json(path: Path, strict: bool = False) -> dict[str, Any]:
    """Read a JSON object from a file; raise a CorpusError for any other content. ``strict`` is as in ``parse_json``."""
    content = parse_json(path.read_bytes(), path, strict)
    if not isinstance(content, dict):
        raise CorpusError(
            f"{path} holds a {type(content).__name__} instead of a JSON object: it is damaged, or the wrong file"
        )
    return content


def refuse_existing(*paths: Path, can_replace: bool = False) -> None:
    """Raise a FileExistsError if an output exists already, or two outputs have the same path.

    ``can_replace`` tells whether the command has the option --replace, for the message.
    """
    for place, path in enumerate(paths):
        if path.exists():
            kind = "folder" if path.is_dir() else "file"
            choice = "give --replace to rename this one" if can_replace else "remove it first"
            raise FileExistsError(f"{path} exists already: name another {kind}, or {choice}")
        if path.resolve() in (other.resolve() for other in paths[:place]):
            raise FileExistsError(f"{path} cannot hold two results: name another file for one of them")
        remove_partial_files(path.parent, glob.escape(path.name) + ".", deep=False)


def set_aside(path: Path) -> Path:
    """Rename a file or folder to NAME.old-1, or the next free number, and return its new path."""
    old = next(other for number in count(1) if not (other := path.with_name(f"{path.name}.old-{number}")).exists())
    return path.rename(old)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


class FolderLock:
    """An exclusive lock on a folder, which the operating system releases even if its holder is killed.

    Forked processes do not inherit the lock. (The library filelock uses flock, which workers inherit, so the workers of
    a killed run would block the next run.) The lock file names the holder, and remains only if the holder is killed.
    The error message of a second process shows ``program`` and ``folder``.
    """

    # fcntl lets a process take its own lock twice, and releases it when any descriptor of the file is closed.
    _held: ClassVar[set[str]] = set()

    def __init__(self, path: Path, program: str, folder: Path) -> None:
        self._path, self._program, self._folder = path, program, folder
        self._descriptor = -1

    def __enter__(self) -> "FolderLock":
        """Take the lock; if another process holds it, raise a CorpusError that names the holder."""
        key = os.path.realpath(self._path)
        if key in self._held:
            raise self._refusal(f"this process, {os.getpid()}")
        while not self._take():
            os.close(self._descriptor)
        self._held.add(key)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder.encode("utf-8"), 0)
        return self

    def _take(self) -> bool:
        """Lock the file; return False if its previous holder has just deleted it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                logger.warning("the file system of %s has no locks: do not start a second run in it", self._folder)
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
            return f"process {holder['process']} on {holder['host']}, since {holder['since']}"
        except (ValueError, KeyError, TypeError):
            return "just started"

    def _refusal(self, holder: str) -> CorpusError:
        return CorpusError(
            f"another {self._program} is writing to {self._folder} ({holder}): wait for it, stop it, or name another "
            "folder"
        )

    def __exit__(self, *exception: object) -> None:
        # Delete the file before releasing the lock, while no other process can hold it.
        self._path.unlink(missing_ok=True)
        self._held.discard(os.path.realpath(self._path))
        os.close(self._descriptor)
