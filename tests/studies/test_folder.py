"""The folder of a study: additions that it accepts, changes that it refuses, and the checkpoints that are kept."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.studies.folder import SETTINGS, data_fingerprint, study_folder
from fairseq_maelm.studies.grid import Run
from fairseq_maelm.studies.grid_runs import tidy

STUDY: dict[str, Any] = {
    "pretraining": {"lr": 1.0},
    "rows": {"maelm": ["--x"]},
    "tasks": {"RTE": {"data": "1", "options": {"a": 1}}},
    "seeds": 2,
}


def study_of(folder: Path, about: dict[str, Any] | None = None, **changes: Any) -> AbstractContextManager[None]:
    return study_folder(folder, {**STUDY, **changes}, about)


def test_a_study_may_grow(tmp_path: Path) -> None:
    for texts in (["a"], ["a"]):
        with study_of(tmp_path / "study", {"tasks": {"RTE": {"paper": 1}}}, texts=texts):
            pass
    grown = {"rows": {"mlm": []}, "tasks": {"CoLA": {"data": "2"}}, "seeds": 1, "texts": ["a"]}
    with study_of(tmp_path / "study", {"tasks": {"RTE": {"paper": 3}, "CoLA": {}}}, **grown):
        pass
    content = json.loads((tmp_path / "study" / SETTINGS).read_text())
    tables = {name: {**STUDY[name], **grown[name]} for name in ("rows", "tasks")}
    about = {"tasks": {"RTE": {"paper": 3}, "CoLA": {}}}
    assert content == {**STUDY, **tables, "texts": ["a"], "seeds": 2, "about": about}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {"RTE": {"data": "3", "options": {"a": 1}}}}, "tasks RTE data: 1 then, 3 now"),
        ({"tasks": {"RTE": {"data": "1", "options": {"a": 1, "b": 2}}}}, "options b: None then, 2 now"),
        ({"pretraining": {"lr": 2.0}}, "pretraining lr: 1.0 then, 2.0 now"),
        ({"rows": {"maelm": ["--y"]}}, "rows maelm"),
        ({"texts": ["b"]}, "texts: None then, ..b.. now"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with study_of(folder):
        pass
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=f"holds a study with other settings .*{message}"):
        study_of(folder, **change).__enter__()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_foreign_folder_and_one_in_use_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is not a study"):
        study_of(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    folder = tmp_path / "folder"
    with study_of(folder), pytest.raises(ValueError, match="another study is writing to"):
        study_of(folder).__enter__()
    # The lock is released at the end, even after a failure.
    with pytest.raises(KeyError), study_of(folder):
        raise KeyError
    with study_of(folder):
        pass


def test_data_fingerprints_tell_data_apart(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\n")
    (tmp_path / "train.bin").write_bytes(b"1234")
    before = data_fingerprint(tmp_path)
    (tmp_path / "preprocess.log").write_text("done")
    assert data_fingerprint(tmp_path) == before
    (tmp_path / "dict.txt").write_text("b 1\n")
    assert data_fingerprint(tmp_path) != before


# Checkpoints

SETTING = {"lr": 1e-5}
RUNS = [Run("RTE", model, SETTING, seed) for model in ("a", "b") for seed in (1, 2, 3)]
SCORES = [60.0, 62.0, 61.0, 50.0, 49.0, 50.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a folder with six runs and their checkpoints."""
    for run, score in zip(RUNS, SCORES):
        run.checkpoints(tmp_path).mkdir(parents=True)
        for name in ("best", "last"):
            (run.checkpoints(tmp_path) / f"checkpoint_{name}.pt").write_text(str(score))
        write_json(run.marker(tmp_path), {"score": score})
    return tmp_path


def left(folder: Path, keep: str) -> list[str]:
    """Tidy, and return the existing checkpoints as model, seed and name."""
    for run in RUNS:
        tidy(folder, run, RUNS, keep)
    return [f"{path.parts[-5]}{path.parent.parent.name[-1]} {path.stem[11:]}" for path in sorted(folder.rglob("*.pt"))]


def test_which_checkpoints_are_kept(folder: Path) -> None:
    assert len(left(folder, "all")) == 12
    assert left(folder, "best") == ["a2 best", "b1 best"]
    assert left(folder, "none") == []


def test_what_failed_can_go_on_and_what_diverged_cannot(folder: Path) -> None:
    going, failed, diverged = RUNS[:3]
    going.marker(folder).unlink()
    write_json(failed.marker(folder), {"failed": "exit status 1: OSError: disk full"})
    write_json(diverged.marker(folder), {"failed": "diverged: the loss was nan"})
    assert left(folder, "none") == ["a1 best", "a1 last", "a2 best", "a2 last"]
