"""The folder of one run: which settings it was made with, and which steps are finished."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Writes a small JSON file that is either whole or absent."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


class Workspace:
    """A folder whose finished steps are skipped when it is used again.

    Args:
        folder: made if it is not there.
        settings: what decides the results; JSON types only.
        steps: how many there will be, for the headings.

    Raises:
        ValueError: the folder holds something else, or a run with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], steps: int) -> None:
        self.folder = folder
        self.begin = time.monotonic()
        self._steps = steps
        self._step_number = 0
        self._open(settings)

    def _open(self, settings: dict[str, Any]) -> None:
        path = self.folder / "settings.json"
        if path.exists():
            earlier = json.loads(path.read_text(encoding="utf-8"))
            for name in sorted(settings.keys() | earlier.keys()):
                if earlier.get(name) != settings.get(name):
                    raise ValueError(
                        f"{self.folder} holds a run with other settings ({name}: {earlier.get(name)}, and now "
                        f"{settings.get(name)}); give another folder with --output, or remove that one"
                    )
            print(f"{self.folder} holds an earlier run with these settings: finished steps are skipped")
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ValueError(f"{self.folder} exists and is no run of the quickstart; give another one with --output")
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, settings)

    def heading(self, title: str) -> None:
        """Announces the next step with the time since the beginning."""
        self._step_number += 1
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        print(f"\n=== {minutes:d}:{seconds:02d}  [{self._step_number}/{self._steps}] {title}", flush=True)

    def step(self, name: str, title: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs a step unless it is finished, and shows its ``lines``.

        Args:
            name: of the step's file.
            title: for people.
            work: returns the step's results; JSON types only. It may be run again after an interruption.

        Returns:
            the results and the ``seconds`` that the step took.
        """
        path = self.folder / "steps" / f"{name}.json"
        if path.exists():
            self.heading(f"{title}: done earlier")
        else:
            self.heading(title)
            begin = time.monotonic()
            results = work()
            path.parent.mkdir(exist_ok=True)
            write_json(path, {**results, "seconds": round(time.monotonic() - begin, 1)})
        results = self.results(name)
        for line in results.get("lines", []):
            print(f"    {line}")
        return results

    def results(self, name: str) -> dict[str, Any]:
        """The results of a finished step."""
        stored: dict[str, Any] = json.loads((self.folder / "steps" / f"{name}.json").read_text(encoding="utf-8"))
        return stored
