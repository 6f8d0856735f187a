"""The folder of a sweep: additions that it accepts, and changes that it refuses."""

import json
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.prepared_folder import made_from, prepare_folder
from fairseq_maelm.sweep.folder import SETTINGS, data_fingerprint, sweep_folder

SWEEP: dict[str, Any] = {
    "pretraining": {"lr": 1.0},
    "models": {"maelm": ["--x"]},
    "tasks": {"RTE": {"data": "1", "options": {"a": 1}}},
}


def sweep_of(folder: Path, **changes: Any) -> AbstractContextManager[None]:
    return sweep_folder(folder, {**SWEEP, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sweep; version 0.3 also stored the number of seeds."""
    with sweep_of(tmp_path / "sweep", seeds=2):
        return tmp_path / "sweep"


def test_a_sweep_may_grow(folder: Path) -> None:
    # The published scores of a task decide no result.
    tasks = {"RTE": {**SWEEP["tasks"]["RTE"], "paper": 3}, "CoLA": {"data": "2"}}
    with sweep_of(folder, models={"mlm": []}, tasks=tasks):
        pass
    content = json.loads((folder / SETTINGS).read_text())
    assert content == {**SWEEP, "models": {**SWEEP["models"], "mlm": []}, "tasks": tasks}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {"RTE": {"data": "3", "options": {"a": 1}}}}, "tasks RTE data: 1 then, 3 now"),
        ({"tasks": {"RTE": {"data": "1", "options": {"a": 1, "b": 2}}}}, "options b: None then, 2 now"),
        ({"pretraining": {"lr": 2.0}}, "pretraining lr: 1.0 then, 2.0 now"),
        ({"models": {"maelm": ["--y"]}}, "models maelm"),
        ({"precision": "bf16"}, "precision: None then, bf16 now"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=f"holds a sweep with other settings .*{message}"):
        sweep_of(folder, **change).__enter__()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_foreign_folder_and_one_in_use_are_left_alone(folder: Path) -> None:
    with pytest.raises(ValueError, match="exists but is not the folder of a sweep"):
        sweep_of(folder.parent).__enter__()
    assert list(folder.parent.iterdir()) == [folder]
    with sweep_of(folder), pytest.raises(ValueError, match="another sweep is writing to"):
        sweep_of(folder).__enter__()
    # The lock is released at the end, even after a failure.
    with pytest.raises(KeyError), sweep_of(folder):
        raise KeyError
    (folder / SETTINGS).write_text('{"rows": {}, "runs": {}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"was written by fairseq_maelm 0\.2"):
        sweep_of(folder).__enter__()


def test_data_fingerprints_tell_data_apart(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\n")
    (tmp_path / "train.bin").write_bytes(b"1234")
    before = data_fingerprint(tmp_path)
    (tmp_path / "preprocess.log").write_text("done")
    assert data_fingerprint(tmp_path) == before
    for name, content in (("dict.txt", b"b 1\n"), ("train.bin", b"1235"), ("train.idx", b"")):
        (tmp_path / name).write_bytes(content)
        assert data_fingerprint(tmp_path) != before
        before = data_fingerprint(tmp_path)


def test_a_change_in_the_middle_of_a_large_prepared_file_is_told_by_its_manifest(tmp_path: Path) -> None:
    def write(content: bytes, new: Path) -> dict[str, int]:
        return {"bytes": (new / "train.bin").write_bytes(content)}

    for name in ("a", "b"):
        content = bytes(5 * 2**20) + name.encode() + bytes(5 * 2**20)
        (tmp_path / name).mkdir()
        prepare_folder(tmp_path / name / "data", "corpus", made_from({}, {}), partial(write, content))
    assert data_fingerprint(tmp_path / "a" / "data") != data_fingerprint(tmp_path / "b" / "data")
