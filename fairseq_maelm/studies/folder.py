"""The folders of sweeps and other studies: locks, settings, results, and the checkpoints to keep."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from fairseq_maelm.files import FolderLock, remove_partial_files, write_json
from fairseq_maelm.studies.engine import read_json
from fairseq_maelm.studies.grid import Run
from fairseq_maelm.studies.log import is_divergence

SETTINGS = "settings.json"
_SWEEP = "sweep.json"
KEEP = ("none", "best", "all")
_BEST = "checkpoint_best.pt"
# Suffixes of files in a data folder that are not data.
_NO_DATA = (".log", ".partial", ".lock", ".md")
# Settings of a study to which later commands may add entries.
_MAY_GROW = ("rows", "tasks", "texts")


def data_fingerprint(folder: Path) -> str:
    """Return a cheap checksum of prepared data: names and sizes of all visible files, and contents of dictionaries."""
    summary = hashlib.sha256()
    files = (path for path in folder.rglob("[!.]*") if path.is_file() and path.suffix not in _NO_DATA)
    for path in sorted(files):
        summary.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.name == "dict.txt":
            summary.update(path.read_bytes())
    return summary.hexdigest()[:16]


def differences(earlier: Any, now: Any, may_grow: Collection[str], name: str = "") -> list[str]:
    """Return a line for each difference of two nested settings.

    In tables whose names are in ``may_grow`` ("" for the outermost), only entries that both have are compared.
    """
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [f"{name}: {earlier} then, {now} now"]
    return [
        line
        for key in sorted(earlier.keys() | now.keys())
        if name not in may_grow or (key in earlier and key in now)
        for line in differences(earlier.get(key), now.get(key), may_grow, f"{name} {key}" if name else key)
    ]


@contextlib.contextmanager
def _working_in(
    folder: Path, file: str, what: str, grown: Callable[[dict[str, Any] | None], dict[str, Any]]
) -> Iterator[None]:
    """Lock a folder that is new, is empty or contains ``file``, and write ``file`` before the block runs.

    ``grown`` turns the file's earlier content, None without a file, into its new content.
    """
    if folder.exists() and not (folder.is_dir() and ((folder / file).exists() or not any(folder.iterdir()))):
        raise ValueError(f"{folder} exists and is not a {what}: give another folder")
    with FolderLock(folder / ".lock", what, folder):
        remove_partial_files(folder)
        write_json(folder / file, grown(read_json(folder / file)))
        yield


def _check_same(folder: Path, what: str, earlier: Any, now: Any, may_grow: Collection[str]) -> None:
    different = differences(earlier, now, may_grow)
    if different:
        raise ValueError(
            f"{folder} holds a {what} with other settings ({'; '.join(different)}), so its runs could not be compared "
            f"with new ones: give another --output, or the settings of that {what}"
        )


def study_folder(folder: Path, settings: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that locks the folder of a study.

    Args:
        folder: new, empty, or of a study with the same settings.
        settings: JSON types that determine the results. Later commands may add entries to "rows", "tasks" and "texts"
            and change "seeds", whose largest number counts.

    Raises:
        ValueError: the folder is in use, holds something else, or a study with other settings.
    """

    def grown(earlier: dict[str, Any] | None) -> dict[str, Any]:
        if earlier is None:
            return settings
        seeds = {"seeds": max(earlier["seeds"], settings["seeds"])} if "seeds" in settings else {}
        _check_same(folder, "study", {**earlier, **seeds}, {**settings, **seeds}, _MAY_GROW)
        tables = {
            name: {**earlier[name], **settings[name]} for name in _MAY_GROW if isinstance(settings.get(name), dict)
        }
        return {**settings, **tables, **seeds}

    return _working_in(folder, SETTINGS, "study", grown)


class SweepFolder:
    """The folder of a sweep, for one sweep at a time and any number of readers.

    ``sweep.json`` has the settings that determine the results under "identity" (later commands must have the same for
    the same tasks and models), facts that may change under "about", and the runs of all commands under "runs".
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def marker(self, run: Run) -> Path:
        """Return the file for the result of a run, or for the reason for its failure."""
        return self.path / "runs" / run.folder / "run.json"

    def checkpoints(self, run: Run) -> Path:
        """Return the folder of a run's checkpoints."""
        return self.path / "runs" / run.folder / "checkpoints"

    def read(self) -> dict[str, Any]:
        """Return the content of ``sweep.json``; raise a FileNotFoundError if there is no sweep."""
        content = read_json(self.path / _SWEEP)
        if content is None:
            raise FileNotFoundError(f"{self.path} has no sweep: there is no {_SWEEP} in it")
        return content

    def runs(self) -> list[Run]:
        """Return the runs of all commands."""
        return [Run.from_json(content) for content in self.read()["runs"]]

    def open(
        self, identity: dict[str, Any], about: dict[str, Any], runs: Iterable[Run]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that locks the folder; raise a ValueError if it has other settings.

        Args:
            identity: "common" settings of all runs, and the settings of each of the "tasks" and "models".
            about: facts about the "tasks" and "models" for reports.
            runs: the runs of this command.
        """
        identity = json.loads(json.dumps(identity))  # turns tuples into lists, as in the file

        def grown(earlier: dict[str, Any] | None) -> dict[str, Any]:
            earlier = earlier or {"identity": {}, "about": {}, "runs": []}
            # Tasks and models may be added, but their settings may not change.
            _check_same(self.path, "sweep", earlier["identity"], identity, ("", "tasks", "models"))
            all_runs = {str(run.folder): run.as_json() for run in [*map(Run.from_json, earlier["runs"]), *runs]}
            content: dict[str, Any] = {"runs": list(all_runs.values())}
            for name, now in (("identity", identity), ("about", about)):
                parts = dict.fromkeys([*earlier[name], *now])
                content[name] = {part: {**earlier[name].get(part, {}), **now.get(part, {})} for part in parts}
            return content

        return _working_in(self.path, _SWEEP, "sweep", grown)


class CheckpointKeeper:
    """Deletes checkpoints of ended runs, which would fill the disk.

    Failed runs keep their checkpoints, from which they can continue; diverged runs do not.

    Args:
        folder: the sweep's folder.
        keep: checkpoints of finished runs to keep: none ("none"), for each task and model the checkpoint_best.pt of the
            run with the best score ("best"), or all ("all").
    """

    def __init__(self, folder: SweepFolder, keep: str) -> None:
        self.folder, self.keep = folder, keep
        self._best: dict[tuple[str, str], tuple[float, Run]] = {}

    def tidy(self, runs: Iterable[Run]) -> None:
        """Tidy up after all runs, in case an earlier sweep was stopped before it did."""
        for run in runs:
            self.ended(run)

    def ended(self, run: Run) -> None:
        """Tidy up after a run, if it has ended."""
        result = read_json(self.folder.marker(run))
        if result is None or not self.folder.checkpoints(run).exists():
            return
        if "failed" in result:
            if is_divergence(result["failed"]):
                self._delete(run)
        elif self.keep == "none":
            self._delete(run)
        elif self.keep == "best":
            self._keep_the_better(run, result["score"])

    def _keep_the_better(self, run: Run, score: float) -> None:
        folder = self.folder.checkpoints(run)
        for path in folder.iterdir():
            if path.name != _BEST:
                path.unlink()
        if not (folder / _BEST).exists():
            return
        best = self._best.get((run.task, run.model))
        if best is not None and best[1] != run and best[0] >= score:
            self._delete(run)
            return
        if best is not None and best[1] != run:
            self._delete(best[1])
        self._best[run.task, run.model] = (score, run)

    def _delete(self, run: Run) -> None:
        shutil.rmtree(self.folder.checkpoints(run), ignore_errors=True)
