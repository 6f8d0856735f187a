"""Which checkpoints stay, and what a retry begins from."""

from pathlib import Path

import pytest

from fairseq_maelm.files import write_json
from fairseq_maelm.sweep.grid import Run, Setting
from fairseq_maelm.sweep.store import CheckpointKeeper, SweepFolder
from fairseq_maelm.sweep.sweep import forget_diverged_runs

SETTING = Setting((("lr", 1e-5),))
RUNS = [Run("RTE", model, SETTING, seed) for model in ("a", "b") for seed in (1, 2, 3)]
SCORES = [60.0, 62.0, 61.0, 50.0, 49.0, 50.0]


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """Six runs with checkpoints."""
    folder = SweepFolder(tmp_path)
    for run, score in zip(RUNS, SCORES):
        folder.checkpoints(run).mkdir(parents=True)
        for name in ("best", "last"):
            (folder.checkpoints(run) / f"checkpoint_{name}.pt").write_text(str(score))
        write_json(folder.marker(run), {"score": score})
    return folder


def left(folder: SweepFolder) -> list[str]:
    """Checkpoints that are there, as model, seed and name."""
    paths = sorted(folder.path.rglob("*.pt"))
    return [f"{path.parts[-5]}{path.parent.parent.name[-1]} {path.stem[11:]}" for path in paths]


@pytest.mark.parametrize("after_each", [True, False])
def test_the_best_of_each_task_and_model_is_kept(folder: SweepFolder, after_each: bool) -> None:
    keeper = CheckpointKeeper(folder, "best")
    if after_each:
        for run in RUNS:
            keeper.ended(run)
    keeper.tidy(RUNS)
    keeper.tidy(RUNS)
    assert left(folder) == ["a2 best", "b1 best"]


def test_nothing_or_everything_is_kept(folder: SweepFolder) -> None:
    CheckpointKeeper(folder, "all").tidy(RUNS)
    assert len(left(folder)) == 12
    CheckpointKeeper(folder, "none").tidy(RUNS)
    assert left(folder) == []


def test_what_failed_can_go_on_and_what_diverged_begins_anew(folder: SweepFolder) -> None:
    going, failed, diverged = RUNS[:3]
    folder.marker(going).unlink()
    write_json(folder.marker(failed), {"failed": "exit status 1: OSError: disk full"})
    write_json(folder.marker(diverged), {"failed": "diverged: the loss was nan"})
    CheckpointKeeper(folder, "none").tidy(RUNS)
    assert left(folder) == ["a1 best", "a1 last", "a2 best", "a2 last"]
    folder.marker(diverged).with_suffix(".log").write_text("nan")
    forget_diverged_runs(folder, RUNS)
    assert folder.marker(failed).exists()
    assert not folder.marker(diverged).parent.exists()
