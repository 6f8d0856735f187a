"""What programs of many runs share: their folder and what it was made with, how they stop, and the GPU of a run."""

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.store import differences, lock

SETTINGS = "settings.json"

# A later command may add to these; what is there already must stay as it is.
_MAY_GROW = ("rows", "tasks")


def visible(slot: str) -> dict[str, str]:
    """The variable that gives a program its GPUs, if there are any to give."""
    return {"CUDA_VISIBLE_DEVICES": slot} if slot else {}


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
        held = lock(folder)
        if held is None:
            raise ValueError(f"{folder} is in use by another process")
        self._lock = held
        earlier = read_json(folder / SETTINGS)
        self.settings = settings if earlier is None else self._grown(earlier, settings)
        write_json(folder / SETTINGS, self.settings)

    def _grown(self, earlier: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        seeds = {"seeds": max(earlier["seeds"], settings["seeds"])} if "seeds" in settings else {}
        different = differences({**earlier, **seeds}, {**settings, **seeds}, _MAY_GROW)
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

    def __enter__(self) -> "Study":
        """The folder is in use until the end of the ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let others use it."""
        self._lock.close()
