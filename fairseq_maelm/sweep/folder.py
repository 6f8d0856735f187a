"""The folder of a sweep: its lock, the settings that later commands must share, and the outcomes of its runs."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files.atomic import FolderLock, remove_partial_files, write_json
from fairseq_maelm.files.prepared_folder import checksums_of, quick_checksum
from fairseq_maelm.launch.command_line import spelled
from fairseq_maelm.sweep.log import is_divergence
from fairseq_maelm.sweep.programs import read_marker

SETTINGS = "settings.json"
FINISHED, DIVERGED, FAILED, MISSING = "finished", "diverged", "failed", "not run"
_NO_DATA = (".log", ".partial", ".lock", ".md")  # suffixes of files in a data folder that are not data
# Tables to which later commands may add entries, and entries that may change because only reports use them.
_MAY_GROW, _MAY_CHANGE = ("models", "tasks", "runs"), ("paper", "metrics", "seeds")


class Outcome(NamedTuple):
    """The outcome of a run."""

    axes: dict[str, Any]  # axis -> value, for axes such as "model", "task" and "seed"
    marker: Path
    state: str  # FINISHED, DIVERGED, FAILED or MISSING
    result: dict[str, Any]  # the content of the marker


def described(setting: Mapping[str, Any]) -> str:
    """Return the text of a setting for tables and messages."""
    return ", ".join(f"{name} {spelled(value)}" for name, value in setting.items())


def run_name(axes: Mapping[str, Any]) -> str:
    """Return the text of a run for messages."""
    return f"{axes['task']}, {axes['model']}, {described(axes['setting'])}, seed {axes['seed']}"


def data_fingerprint(folder: Path) -> str:
    """Return a fingerprint of data: of the names and both ends of all files, and of the checksums in the manifest."""
    summary, prepared = hashlib.sha256(), checksums_of(folder)
    files = (path for path in folder.rglob("[!.]*") if path.is_file() and path.suffix not in _NO_DATA)
    for path in sorted(files):
        name = path.relative_to(folder).as_posix()
        summary.update(f"{name} {quick_checksum(path)} {prepared.get(name)}\n".encode())
    return summary.hexdigest()[:16]


def _differences(earlier: Any, now: Any, name: str = "") -> list[str]:
    """Return a line for each difference between nested settings; for tables that may grow, ignore added entries."""
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [f"{name}: {earlier} then, {now} now"]
    keys = earlier.keys() & now.keys() if name in _MAY_GROW else (earlier.keys() | now.keys()) - set(_MAY_CHANGE)
    found = [_differences(earlier.get(key), now.get(key), f"{name} {key}".strip()) for key in sorted(keys)]
    return [line for lines in found for line in lines]


def read_settings(folder: Path) -> dict[str, Any]:
    """Return a sweep's settings; raise FileNotFoundError if there are none, ValueError for an earlier version's."""
    settings = read_marker(folder / SETTINGS)
    if settings is None:
        raise FileNotFoundError(f"{folder} is not the folder of a sweep: there is no {SETTINGS} in it")
    if "rows" in settings:
        raise ValueError(f"{folder} was written by fairseq_maelm 0.2: report it and continue with that version")
    return settings


def outcomes_of(folder: Path, **wanted: Any) -> list[Outcome]:
    """Return the outcomes of the runs of all commands in a folder; ``wanted`` (axis -> value) selects runs."""
    found = []
    for name, axes in read_settings(folder)["runs"].items():
        if axes.items() >= wanted.items():
            result = read_marker(marker := folder / f"{name}.json")
            state = MISSING if result is None else FINISHED
            if reason := (result or {}).get("failed"):
                state = DIVERGED if is_divergence(reason) else FAILED
            found.append(Outcome(axes, marker, state, result or {}))
    return found


@contextlib.contextmanager
def sweep_folder(folder: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Lock the folder of a sweep, and write its settings before the block runs.

    The folder is new, empty, or that of a sweep with the same settings; otherwise, or if it is in use, raise a
    ValueError. ``settings`` determine the results, as JSON types. Later commands may add entries to "models", "tasks"
    and "runs" (path of the marker without suffix -> axes).
    """
    settings = json.loads(json.dumps(settings))  # turns tuples into lists, to compare with the file
    if folder.exists() and not (folder.is_dir() and ((folder / SETTINGS).exists() or not any(folder.iterdir()))):
        raise ValueError(f"{folder} exists but is not the folder of a sweep: give another folder")
    with FolderLock(folder / ".lock", "sweep", folder):
        remove_partial_files(folder)
        earlier = read_settings(folder) if (folder / SETTINGS).exists() else settings
        if different := _differences(earlier, settings):
            raise ValueError(
                f"{folder} holds a sweep with other settings ({'; '.join(different)}), so its runs could not be "
                "compared with new ones: give another --output, or the settings of that sweep"
            )
        tables = [name for name in _MAY_GROW if isinstance(settings.get(name), dict)]
        write_json(folder / SETTINGS, settings | {name: {**earlier[name], **settings[name]} for name in tables})
        yield
