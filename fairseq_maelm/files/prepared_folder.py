"""Output folders that are either complete or absent, with a manifest of the settings and input files.

A folder is filled under the hidden name ``.NAME.unfinished`` and renamed at the end. It is locked in the meantime, so
an unfinished folder without a lock was left by a killed run.

The manifest has the size and the SHA-256 of every output. A command that is given a finished folder again compares all
sizes, and the content of files up to 4 MiB: reading a whole corpus would take minutes. Whether two folders hold the
same data, such as those of a run and of its continuation, is decided by the checksums in their manifests, without
reading the files; see ``checksums_of``. Training checks that every token is in the vocabulary, once for each file.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import (
    CorpusError,
    FolderLock,
    read_json,
    refuse_existing,
    set_aside,
    sha256_of,
    synchronize_folder,
    write_json,
)

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
FORMAT = 1

# Kind of a folder -> the command that writes it.
COMMANDS = {
    "corpus": "maelm prepare corpus",
    "glue": "maelm prepare glue",
    "sentences": "maelm prepare sentences",
    "squad": "maelm prepare squad",
    "tagging": "maelm prepare tagging",
    "scores": "maelm score",
}

_RESULT, _FULL_BYTES = "result", 2**20
# Of a finished folder, only the contents of files up to this many bytes are read.
_QUICKLY_READ = 2**22
_BEGUN_FILE = "begun.json"
# Files of data in folders of other programs, such as fairseq-preprocess; and digits of a checksum in checkpoints.
_DATA_FILES = tuple(
    f"{place}{name}" for place in ("", "*/") for name in ("*.bin", "*.idx", "*.label", "*.tsv", "dict.txt")
)
_DIGITS = 16


def fingerprints(paths: Iterable[Path], with_checksums: bool = True) -> list[dict[str, Any]]:
    """Describe files so that a later run can detect changes.

    Checksums require reading the files; without checksums, any difference in size or modification time is a change.
    """
    states = [(path, path.stat()) for path in paths]
    return [
        {"file": str(path), "bytes": state.st_size, "changed_ns": state.st_mtime_ns}
        | ({"sha256": sha256_of(path)} if with_checksums else {})
        for path, state in states
    ]


def made_from(settings: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Describe the origin of a folder: settings by name with underscores, and files by role, such as "train"."""
    described = {"settings": dict(settings), "files": {role: fingerprints(paths) for role, paths in files.items()}}
    # Turns tuples into lists, as in the manifest.
    return dict(json.loads(json.dumps(described)))


def prepare_folder(
    target: Path,
    kind: str,
    origin: Mapping[str, Any],
    write: Callable[[Path], Mapping[str, Any]],
    resumes: bool = False,
    copies: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a folder of one of the ``COMMANDS``, unless it exists already with the same ``origin`` (of ``made_from``).

    ``write`` fills the folder that it is given and returns more entries for the manifest (the facts, and perhaps more
    detailed "files"). With ``resumes`` it stores partial work in that folder's parent, which the next run uses; nothing
    is kept after a CorpusError. ``copies`` are folders inside the result that get a copy of the manifest.

    Return the manifest: "format", "kind", "settings", "files", the facts, and bytes and SHA-256 of all "outputs". A
    CorpusError says that another process is writing the folder or that it has another origin, a FileExistsError that
    ``target`` is neither empty nor a prepared folder.
    """
    manifest = _finished(target, kind, origin)
    if manifest is None or _hidden(target, "unfinished").exists():
        with _unfinished(target, COMMANDS[kind], resumes) as unfinished:
            manifest = _finished(target, kind, origin)
            if manifest is None:
                return _write(target, unfinished, kind, origin, write, copies)
    logger.info("%s was already prepared from these files with these settings: nothing to do", target)
    return manifest


def _write(
    target: Path,
    unfinished: Path,
    kind: str,
    origin: Mapping[str, Any],
    write: Callable[[Path], Mapping[str, Any]],
    copies: Sequence[str],
) -> dict[str, Any]:
    begun, result = unfinished / _BEGUN_FILE, unfinished / _RESULT
    if begun.exists():
        _refuse_difference(unfinished, read_json(begun), origin)
        logger.info("resuming the interrupted work in %s", unfinished)
    else:
        write_json(begun, origin)
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    try:
        facts = write(result)
    except CorpusError:
        # To correct it, settings or files must change, so that nothing here could be resumed.
        begun.unlink()
        raise
    files = sorted(path for path in result.rglob("*") if path.is_file())
    outputs = {
        path.relative_to(result).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files
    }
    manifest = {"format": FORMAT, "kind": kind, **origin, **facts, "outputs": outputs}
    for folder in (*copies, "."):
        write_json(result / folder / MANIFEST_FILE, manifest)
    _publish(result, target)
    return dict(json.loads(json.dumps(manifest)))


def read_manifest(folder: Path, *kinds: str) -> dict[str, Any]:
    """Read the manifest of a folder of one of the kinds."""
    path = folder / MANIFEST_FILE
    refusal = f"{folder} was not written by " + " or ".join(f"`{COMMANDS[kind]}`" for kind in kinds)
    if not path.is_file():
        raise FileNotFoundError(f"{refusal}: there is no {path}")
    manifest = read_json(path)
    if manifest.get("kind") not in kinds or manifest.get("format") != FORMAT:
        raise CorpusError(
            f"{refusal} of this version: give a folder that this command wrote, or prepare the folder again"
        )
    if not all(isinstance(manifest.get(part), dict) for part in ("settings", "files", "outputs")):
        raise CorpusError(
            f"{path} is damaged: parts of it are missing; put the original back, or prepare the folder again"
        )
    return manifest


def _finished(target: Path, kind: str, origin: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of a finished folder, or None if it does not exist yet; raise an error for other folders."""
    if _is_free(target):
        return None
    if not (target / MANIFEST_FILE).is_file():
        refuse_existing(target)
    manifest = read_manifest(target, kind)
    _refuse_difference(target, manifest, origin)
    _check_outputs(target, manifest)
    return manifest


def _check_outputs(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Compare file sizes with the manifest, and also the checksums of small files."""
    for name, facts in manifest["outputs"].items():
        path, size = folder / name, facts["bytes"]
        same = path.exists() and path.stat().st_size == size
        if not same or (size <= _QUICKLY_READ and sha256_of(path) != facts["sha256"]):
            raise CorpusError(f"{path} is missing or was changed: remove {folder} and prepare it again")


def checksums_of(folder: Path) -> dict[str, str]:
    """Return name -> checksum of the files in a folder of data, except test splits; {} if nothing is known of them.

    The checksums are those of the manifest or, in folders of other programs, those of ``quick_checksum``.
    """
    outputs: Any = {}
    with contextlib.suppress(CorpusError, FileNotFoundError):
        outputs = read_manifest(folder, *COMMANDS)["outputs"]
    shard = f"{folder.name}/"
    if outputs and not any((folder / name).is_file() for name in outputs):
        # A shard has a copy of the whole corpus's manifest.
        outputs = {name.removeprefix(shard): facts for name, facts in outputs.items() if name.startswith(shard)}
    sums = {name: str(facts["sha256"])[:_DIGITS] for name, facts in outputs.items()}
    if not sums:
        files = (path for pattern in _DATA_FILES for path in folder.glob(pattern) if path.is_file())
        sums = {path.relative_to(folder).as_posix(): quick_checksum(path) for path in files}
    return {name: digits for name, digits in sums.items() if not Path(name).name.startswith("test")}


def same_content(*manifests: Path) -> bool:
    """Return whether manifests describe the same outputs and facts, whatever files and settings these come from."""
    first, *others = ({**read_json(path), "files": None, "settings": None} for path in manifests)
    return all(each == first for each in others)


def quick_checksum(path: Path) -> str:
    """Return a checksum of a file's size and both ends; torch stores checksums of all weights at the end."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with open(path, "rb") as stream:
        digest.update(b"%d" % size + stream.read(_QUICKLY_READ))
        stream.seek(max(0, size - _QUICKLY_READ))
        digest.update(stream.read())
    return digest.hexdigest()[:_DIGITS]


def _refuse_difference(folder: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a CorpusError about the first difference between two origins from ``made_from``."""
    for difference in _differences(earlier, now):
        raise CorpusError(
            f"{folder} was prepared differently: {difference}; name another folder, or remove this one first"
        )


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    before, after = earlier["settings"], now["settings"]
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield f"--{name.replace('_', '-')} was {before.get(name)!r} and is now {after.get(name)!r}"
    for role in sorted(earlier["files"].keys() | now["files"].keys()):
        had, has = earlier["files"].get(role, []), now["files"].get(role, [])
        if len(had) != len(has):
            yield f"{role} had {len(had)} files and now has {len(has)}"
        for old, new in zip(had, has):
            if Path(old["file"]).name != Path(new["file"]).name:
                yield f"{role} had the file {old['file']} and now has {new['file']}"
            same_state = (old["bytes"], old["changed_ns"]) == (new["bytes"], new["changed_ns"])
            if not same_state and old.get("sha256") != (new.get("sha256") or sha256_of(Path(new["file"]))):
                yield f"the file {new['file']} {'has changed' if old['file'] == new['file'] else 'has other content'}"


@contextlib.contextmanager
def whole_folder(target: Path, command: str, replace: bool | None = None) -> Iterator[Path]:
    """Open a temporary folder, and rename it to ``target`` if the ``with`` block ends without an exception.

    With ``replace``, an existing folder is then renamed to ``target``.old-1 or the next free number; otherwise, unless
    it is empty, it is a FileExistsError at the start. ``replace`` is None if the command has no option --replace. A
    CorpusError names the ``command`` if another process is writing the folder.
    """
    _check_free(target, replace)
    with _unfinished(target, command, resumes=False) as folder:
        result = folder / _RESULT
        result.mkdir()
        yield result
        _publish(result, target, replace)


@contextlib.contextmanager
def _unfinished(target: Path, command: str, resumes: bool) -> Iterator[Path]:
    """Lock the target, and provide its hidden folder inside the ``with`` block."""
    if os.path.ismount(target):
        raise CorpusError(f"{target} is a mount point, which cannot be replaced: name a folder inside it")
    folder = _hidden(target, "unfinished")
    with FolderLock(_hidden(target, "lock"), f"`{command}`", target):
        _remove_unless(resumes, folder)
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        except BaseException as error:
            is_full = shutil.disk_usage(folder).free < _FULL_BYTES
            _remove_unless(resumes, folder)
            # Libraries convert the error for a full disk to other errors.
            if is_full and not isinstance(error, (OSError, KeyboardInterrupt)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unless(resumes: bool, folder: Path) -> None:
    """Remove an unfinished folder, unless its work is to be resumed and was begun."""
    if not (resumes and (folder / _BEGUN_FILE).exists()):
        shutil.rmtree(folder, ignore_errors=True)


def _hidden(target: Path, suffix: str) -> Path:
    """Return a hidden path next to a folder; for a symbolic link, next to the folder that it points to."""
    place = Path(os.path.realpath(target))
    return place.with_name(f".{place.name}.{suffix}")


def _is_free(target: Path) -> bool:
    return not target.exists() or (target.is_dir() and not any(target.iterdir()))


def _check_free(target: Path, replace: bool | None = None) -> None:
    if not _is_free(target) and not (replace and target.is_dir()):
        refuse_existing(target, can_replace=replace is False and target.is_dir())


def _publish(result: Path, target: Path, replace: bool | None = None) -> None:
    place = Path(os.path.realpath(target))
    _check_free(place, replace)
    old = None
    if not _is_free(place):
        old = set_aside(place)
    try:
        os.replace(result, place)
    except OSError:
        if old is not None:
            old.rename(place)
        raise
    synchronize_folder(place.parent)
