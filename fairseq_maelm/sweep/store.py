"""The folder of a sweep: who works in it, what it was made with, and what it is to hold."""

import fcntl
import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, TextIO

from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.grid import Run
from fairseq_maelm.sweep.jobs import read_json

__all__ = ["SweepFolder", "data_fingerprint", "differences", "lock"]

_SETTINGS, _LOCK = "sweep.json", ".lock"
# Written beside data by programs that read it.
_NO_DATA = (".log", ".partial", ".lock", ".md")


def data_fingerprint(folder: Path) -> str:
    """Tell prepared data apart cheaply: names and sizes of all files, and the dictionaries' content."""
    summary = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in _NO_DATA):
        summary.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.name == "dict.txt":
            summary.update(path.read_bytes())
    return summary.hexdigest()[:16]


class SweepFolder:
    """A folder that one sweep at a time works in, and reports only read.

    ``sweep.json`` holds under "identity" what decides the results - later commands in the folder must agree with it
    where they name the same tasks and models -, under "about" what may change, and under "runs" all that were ever
    asked for.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Optional[TextIO] = None

    def marker(self, run: Run) -> Path:
        """Where the result of a run stands once it is finished or has failed; its log is beside it."""
        return self.path / "runs" / run.folder / "run.json"

    def checkpoints(self, run: Run) -> Path:
        """Where a run saves its checkpoints."""
        return self.path / "runs" / run.folder / "checkpoints"

    def read(self) -> dict[str, Any]:
        """What ``sweep.json`` holds.

        Raises:
            FileNotFoundError: there is no sweep.
        """
        content = read_json(self.path / _SETTINGS)
        if content is None:
            raise FileNotFoundError(f"{self.path} holds no sweep: it has no {_SETTINGS}")
        return content

    def runs(self) -> list[Run]:
        """All runs that were ever asked for."""
        return [Run.from_json(content) for content in self.read()["runs"]]

    def open(self, identity: dict[str, Any], about: dict[str, Any], runs: Iterable[Run]) -> "SweepFolder":
        """Begin to work in the folder; it is made if it is not there.

        Args:
            identity: "common" settings of all runs, and for each of the "tasks" and "models" what it is.
            about: for the "tasks" and "models" what reports want to know.
            runs: that are asked for.

        Raises:
            ValueError: it is in use, holds something else, or a sweep with other settings. Nothing is changed then.
        """
        folder = self.path
        if folder.exists() and not (folder.is_dir() and ((folder / _SETTINGS).exists() or not any(folder.iterdir()))):
            raise ValueError(f"{folder} exists and is no sweep: give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(folder)
        if self._lock is None:
            raise ValueError(f"another sweep is running in {folder}: wait for it, or stop it")
        identity = json.loads(json.dumps(identity))  # tuples become lists, as they did when they were written
        earlier = read_json(folder / _SETTINGS) or {"identity": {}, "about": {}, "runs": []}
        # Tasks and models may be added; inside one of them nothing may be.
        different = differences(earlier["identity"], identity, may_grow=("", "tasks", "models"))
        if different:
            self.close()
            raise ValueError(
                f"{folder} holds a sweep with other settings ({'; '.join(different)}): its runs could not be compared "
                "with new ones. Give another --output, or the settings of that sweep"
            )
        all_runs = {str(run.folder): run.as_json() for run in [*map(Run.from_json, earlier["runs"]), *runs]}
        content = {
            "identity": _merged(earlier["identity"], identity),
            "about": _merged(earlier["about"], about),
            "runs": list(all_runs.values()),
        }
        write_json(folder / _SETTINGS, content)
        return self

    def close(self) -> None:
        """Let others use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "SweepFolder":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def _merged(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {**earlier.get(name, {}), **now.get(name, {})} for name in dict.fromkeys([*earlier, *now])
    }  # fmt: skip


def differences(earlier: Any, now: Any, may_grow: Collection[str], name: str = "") -> list[str]:
    """Where two nested settings say different things, a line for each.

    Args:
        earlier: tables of tables, and so on.
        now: the same.
        may_grow: names of tables whose entries are compared only if both have them; "" is the whole.
        name: of what is compared, for the lines.
    """
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [f"{name}: {earlier} then, {now} now"]
    return [
        line
        for key in sorted(earlier.keys() | now.keys())
        if name not in may_grow or (key in earlier and key in now)
        for line in differences(earlier.get(key), now.get(key), may_grow, f"{name} {key}" if name else key)
    ]


def lock(folder: Path) -> Optional[TextIO]:
    """Reserve a folder for as long as the returned file is open; None if somebody else has it.

    The system lets it go when the process ends, however it ends.
    """
    held = open(folder / _LOCK, "w")  # noqa: SIM115
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held
