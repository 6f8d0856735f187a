"""The folders of sweeps and studies: additions that they accept, and changes that they refuse."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files import write_json
from fairseq_maelm.studies.folder import SETTINGS, CheckpointKeeper, SweepFolder, data_fingerprint, study_folder
from fairseq_maelm.studies.grid import Run, Setting
from fairseq_maelm.studies.grid_runs import forget_diverged_runs

IDENTITY: dict[str, Any] = {
    "common": {"precision": "fp32", "options": []},
    "tasks": {"RTE": {"data": "1", "options": {"a": 1}}},
    "models": {"ours": {"checkpoint": "1"}},
}
SETTING = Setting((("lr", 1e-5),))
RUN = Run("RTE", "ours", SETTING, 1)
STUDY: dict[str, Any] = {"data": "d", "pretraining": {"lr": 1.0}, "rows": {"maelm": []}, "tasks": {}, "seeds": 2}


def sweep_of(folder: Path, **changes: Any) -> AbstractContextManager[None]:
    return SweepFolder(folder).open({**IDENTITY, **changes}, {}, [RUN])


def study_of(folder: Path, **changes: Any) -> AbstractContextManager[None]:
    return study_folder(folder, {**STUDY, **changes})


def test_a_sweep_may_grow(tmp_path: Path) -> None:
    with sweep_of(tmp_path / "sweep"):
        pass
    second = Run("CoLA", "other", SETTING, 1)
    grown = {**IDENTITY, "tasks": {"CoLA": {"data": "2"}}, "models": {"other": {"checkpoint": "2"}}}
    sweep = SweepFolder(tmp_path / "sweep")
    with sweep.open(grown, {}, [second, RUN]):
        pass
    assert sweep.runs() == [RUN, second]
    assert set(sweep.read()["identity"]["tasks"]) == {"RTE", "CoLA"}


def test_a_study_with_a_list_of_texts_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        with study_of(tmp_path / "study", texts=["a"]):
            pass
    assert json.loads((tmp_path / "study" / SETTINGS).read_text())["texts"] == ["a"]


def test_a_study_may_grow(tmp_path: Path) -> None:
    with study_of(tmp_path / "study"):
        pass
    grown = {"rows": {"mlm": ["--x"]}, "tasks": {"A": {"folder": "a"}}, "seeds": 1}
    with study_of(tmp_path / "study", **grown):
        pass
    content = json.loads((tmp_path / "study" / SETTINGS).read_text())
    assert content == {**STUDY, **grown, "rows": {"maelm": [], "mlm": ["--x"]}, "seeds": 2}


@pytest.mark.parametrize(
    ("opened", "first", "change", "message"),
    [
        (sweep_of, {}, {"common": {"precision": "fp16", "options": []}}, "common precision: fp32 then, fp16 now"),
        (sweep_of, {}, {"tasks": {"RTE": {"data": "3", "options": {"a": 1}}}}, "tasks RTE data: 1 then, 3 now"),
        (sweep_of, {}, {"tasks": {"RTE": {"data": "1", "options": {"a": 1, "b": 2}}}}, "options b: None then, 2 now"),
        (sweep_of, {}, {"models": {"ours": {"checkpoint": "4"}}}, "models ours checkpoint"),
        (study_of, {}, {"pretraining": {"lr": 2.0}}, "pretraining lr: 1.0 then, 2.0 now"),
        (study_of, {"rows": {"mlm": []}}, {"rows": {"mlm": ["--y"]}}, "rows mlm"),
        (study_of, {"tasks": {"A": "a"}}, {"tasks": {"A": "b"}}, "tasks A: a then, b now"),
        (study_of, {"texts": {"A": 1}}, {"texts": {"A": 2}}, "texts A: 1 then, 2 now"),
        (study_of, {"texts": ["a"]}, {"texts": ["b"]}, "texts: ..a.. then, ..b.. now"),
    ],
)
def test_other_settings_are_refused(
    opened: Any, first: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    with opened(folder, **first):
        pass
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=f"holds a (sweep|study) with other settings .*{message}"):
        opened(folder, **change).__enter__()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("opened", [sweep_of, study_of])
def test_a_foreign_folder_and_one_in_use_are_left_alone(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match="exists and is not a (sweep|study)"):
        opened(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    folder = tmp_path / "folder"
    with opened(folder), pytest.raises(ValueError, match="another (sweep|study) is writing to"):
        opened(folder).__enter__()
    # The lock is released at the end, even after a failure.
    with pytest.raises(KeyError), opened(folder):
        raise KeyError
    with opened(folder):
        assert opened is study_of or SweepFolder(folder).runs() == [RUN], "reports need no lock"


def test_data_fingerprints_tell_data_apart(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\n")
    (tmp_path / "train.bin").write_bytes(b"1234")
    before = data_fingerprint(tmp_path)
    (tmp_path / "preprocess.log").write_text("done")
    assert data_fingerprint(tmp_path) == before
    (tmp_path / "dict.txt").write_text("b 1\n")
    assert data_fingerprint(tmp_path) != before


# Checkpoints

RUNS = [Run("RTE", model, SETTING, seed) for model in ("a", "b") for seed in (1, 2, 3)]
SCORES = [60.0, 62.0, 61.0, 50.0, 49.0, 50.0]


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """Write a folder with six runs and their checkpoints."""
    folder = SweepFolder(tmp_path)
    for run, score in zip(RUNS, SCORES):
        folder.checkpoints(run).mkdir(parents=True)
        for name in ("best", "last"):
            (folder.checkpoints(run) / f"checkpoint_{name}.pt").write_text(str(score))
        write_json(folder.marker(run), {"score": score})
    return folder


def left(folder: SweepFolder) -> list[str]:
    """Return the existing checkpoints as model, seed and name."""
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


def test_what_failed_can_go_on_and_what_diverged_is_forgotten(folder: SweepFolder) -> None:
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
