"""Which checkpoints of runs that have ended stay on the disk."""

import shutil
from collections.abc import Iterable

from fairseq_maelm.sweep.grid import Run
from fairseq_maelm.sweep.jobs import read_json
from fairseq_maelm.sweep.log import is_divergence
from fairseq_maelm.sweep.store import SweepFolder

__all__ = ["KEEP", "CheckpointKeeper"]

KEEP = ("none", "best", "all")
_BEST = "checkpoint_best.pt"


class CheckpointKeeper:
    """Deletes what a grid would fill the disk with.

    A run that failed keeps its last checkpoint, to go on from it; one that diverged has nothing worth keeping.

    Args:
        folder: of the sweep.
        keep: of finished runs nothing ("none"), for each task and model checkpoint_best.pt of the run with the best
            score ("best"), or everything ("all").
    """

    def __init__(self, folder: SweepFolder, keep: str) -> None:
        self.folder, self.keep = folder, keep
        self._best: dict[tuple[str, str], tuple[float, Run]] = {}

    def tidy(self, runs: Iterable[Run]) -> None:
        """Do for all runs what their own sweep may have been too late to do."""
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
