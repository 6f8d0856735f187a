"""Files that are either whole or absent: atomic writing, checksums and a lock on a folder."""

import contextlib
import errno
import fcntl
import glob
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

# What of a large file is looked at where reading all of it would take too long.
_SAMPLED_PARTS, _PART_BYTES = 64, 2**16
SAMPLED_BYTES = _SAMPLED_PARTS * _PART_BYTES

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
    try:
        with _open_locked(partial) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    synchronize_folder(path.parent)


def _open_locked(path: Path) -> BinaryIO:
    """Open a file for writing and lock it, so that nobody takes it for what a killed run left."""
    while True:
        stream = open(path, "wb")  # noqa: SIM115
        _lock(stream)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                return stream
        stream.close()


def _lock(stream: BinaryIO) -> bool:
    """Lock a file until it is closed; return false if another process has it, or nobody can tell."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_partial_files(folder: Path, name: str = "", deep: bool = True) -> None:
    """Remove what killed runs left of unfinished files: in a folder and all below it, or of one name in it alone."""
    pattern = f"{name}*{PARTIAL_SUFFIX}"
    for path in folder.rglob(pattern) if deep else folder.glob(pattern):
        # One that is being written is locked.
        with contextlib.suppress(FileNotFoundError), open(path, "r+b") as stream:
            if _lock(stream):
                path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole small file atomically."""
    with atomic_file(path) as stream:
        stream.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` atomically as indented JSON."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode("ascii"))


def parse_json(content: bytes | str, place: object) -> Any:
    """Parse JSON; raise CorpusError, with a message that begins with the place, for anything else."""
    try:
        return json.loads(content)
    except RecursionError:
        raise CorpusError(f"{place} is nested too deep for a JSON file") from None
    except ValueError as error:
        raise CorpusError(f"{place} is not JSON ({error}): it is damaged, or another file") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object in it; raise CorpusError for one with anything else."""
    content = parse_json(path.read_bytes(), path)
    if not isinstance(content, dict):
        raise CorpusError(f"{path} holds a {type(content).__name__} and no JSON object: it is damaged, or another file")
    return content


def refuse_existing(*paths: Path, can_replace: bool = False) -> None:
    """Refuse to write over what is there.

    Args:
        paths: to be written.
        can_replace: whether the command has an option --replace for that.

    Raises:
        FileExistsError: names the first that exists, or is named twice.
    """
    for place, path in enumerate(paths):
        if path.exists():
            kind = "folder" if path.is_dir() else "file"
            choice = "give --replace to rename this one" if can_replace else "remove it first"
            raise FileExistsError(f"{path} exists already: name another {kind}, or {choice}")
        if path.resolve() in (other.resolve() for other in paths[:place]):
            raise FileExistsError(f"{path} cannot hold two results: name another file for one of them")
        remove_partial_files(path.parent, glob.escape(path.name) + ".", deep=False)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def sample_sha256_of(path: Path) -> str:
    """Return the SHA-256 of parts of a file, spread over it, its start and end among them; of a small one, of all."""
    size, digest = path.stat().st_size, hashlib.sha256()
    if size <= SAMPLED_BYTES:
        return sha256_of(path)
    with open(path, "rb") as stream:
        for part in range(_SAMPLED_PARTS):
            stream.seek(part * (size - _PART_BYTES) // (_SAMPLED_PARTS - 1))
            digest.update(stream.read(_PART_BYTES))
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
