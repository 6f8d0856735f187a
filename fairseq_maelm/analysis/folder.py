"""The output folder of ``maelm analyze``, locked for one process and one set of settings."""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import PARTIAL_SUFFIX, FolderLock, read_json, remove_partial_files, write_json

MODELS_FOLDER = "models"
_SETTINGS_FILE = "settings.json"


@contextlib.contextmanager
def claimed(output: Path, recorded: dict[str, Any]) -> Iterator[None]:
    """Lock an output folder and check its settings; a new folder is removed if the work fails without a result."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with FolderLock(output.with_name(f".{output.name}.lock"), "`maelm analyze`", output):
        is_new = not _files(output)
        try:
            _claim(output, recorded)
            remove_partial_files(output)
            yield
        except BaseException:
            if is_new and _files(output) in ([], [output / _SETTINGS_FILE]):
                shutil.rmtree(output, ignore_errors=True)
            raise


def _files(folder: Path) -> list[Path]:
    """Return all files in a folder, except partial settings files that a killed run left."""
    left = f"{_SETTINGS_FILE}.*{PARTIAL_SUFFIX}"
    return [path for path in folder.rglob("*") if path.is_file() and not path.match(left)]


def _claim(output: Path, recorded: dict[str, Any]) -> None:
    path = output / _SETTINGS_FILE
    if path.exists():
        earlier = read_json(path)
        if changed := [name for name in recorded if earlier.get(name) != recorded[name]]:
            raise ValueError(
                f"{output} has results with other settings ({', '.join(changed)} differ): choose another --output"
            )
        return
    if output.exists() and (not output.is_dir() or _files(output)):
        raise ValueError(f"{output} exists but does not contain results of `maelm analyze`: choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    write_json(path, recorded)


def fingerprint_of(path: Path) -> str:
    """Hash a file's path, size and modification time; hashing its content could take as long as a small run."""
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns)]
    return hashlib.sha256(repr((str(path.resolve()), facts)).encode()).hexdigest()
