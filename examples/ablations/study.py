"""The folder of a study: who uses it, what it was made with, and what is finished in it."""

import contextlib
import fcntl
import hashlib
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.corpus.files import write_json
from fairseq_maelm.sweep.jobs import read_json

SETTINGS, LOCK = "settings.json", ".lock"

# A later command may add to these; what is there already must stay as it is.
_MAY_GROW = ("rows", "tasks")


def fingerprint(folder: Path) -> str:
    """Tell prepared data apart cheaply: names and sizes of all files, and the dictionaries' content."""
    summary = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".bin", ".idx", ".label", ".txt")):
        summary.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.name == "dict.txt":
            summary.update(path.read_bytes())
    return summary.hexdigest()[:16]


def pretraining_marker(folder: Path, row: str) -> Path:
    """Where the result of a pretraining stands once it is finished or has failed."""
    return folder / "runs" / row / "pretraining.json"


def fine_tuning_marker(folder: Path, row: str, task: str, seed: int) -> Path:
    """Where the result of a fine-tuning stands once it is finished or has failed."""
    return folder / "runs" / row / task / f"seed_{seed}.json"


def _differences(earlier: Any, now: Any, name: str = "") -> list[str]:
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [f"{name}: {earlier} then, {now} now"]
    return [
        line
        for key in sorted(earlier.keys() | now.keys())
        if name not in _MAY_GROW or (key in earlier and key in now)
        for line in _differences(earlier.get(key), now.get(key), f"{name} {key}" if name else key)
    ]


@contextlib.contextmanager
def sitting(program: str) -> Iterator[None]:
    """A part of long work that the same command takes up again: stopped or refused, it says so in a line.

    Raises:
        SystemExit: 130 when interrupted, by Ctrl-C or SIGTERM; with the message of an OSError or a ValueError.
    """
    # fairseq, once imported, lets every library's debugging messages through.
    logging.getLogger().setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the same command goes on from here\n")
        raise SystemExit(130) from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"{program}: error: {error}") from error


class Study:
    """A folder that one process at a time works in, with one group of settings.

    Args:
        folder: made if it is not there.
        settings: what decides the results; JSON types only. "rows" and "tasks" may gain entries from one command to
            the next, and the largest number of "seeds" counts; all else must be as before.

    Raises:
        ValueError: the folder is in use, holds something else, or a study with other settings. Nothing is changed then.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        if folder.exists() and not (folder.is_dir() and ((folder / SETTINGS).exists() or not any(folder.iterdir()))):
            raise ValueError(f"{folder} exists and is no folder of a study: give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        # Open for as long as the study is: the system lets the lock go when the process ends, however it ends.
        self._lock = open(folder / LOCK, "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder} is in use by another process") from error
        earlier = read_json(folder / SETTINGS)
        self.settings = settings if earlier is None else self._grown(earlier, settings)
        write_json(folder / SETTINGS, self.settings)

    def _grown(self, earlier: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        seeds = {"seeds": max(earlier["seeds"], settings["seeds"])} if "seeds" in settings else {}
        different = _differences({**earlier, **seeds}, {**settings, **seeds})
        if different:
            raise ValueError(
                f"{self.folder} holds a study with other settings ({'; '.join(different)}): its rows could not be "
                "compared with new ones. Give another folder, or the settings of that study"
            )
        return {
            **settings,
            **{name: {**earlier[name], **settings[name]} for name in _MAY_GROW if name in settings},
            **seeds,
        }

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()
