"""The files copied into a save folder; tests/end_to_end/test_ema.py shows that they are sufficient."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from fairseq_maelm.finetuning.sentences.task import SentencesTask
from fairseq_maelm.finetuning.tagging.task import TaggingTask
from fairseq_maelm.launch.setup_files import (
    read_setup_files,
    write_waiting_files,
    write_with_first_checkpoint,
)
from fairseq_maelm.tasks.maelm import MaelmTask

SENTENCES = ("input0/dict.txt", "input1/dict.txt", "label/dict.txt", "index/valid.txt")


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a 1")
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def task_of(kind: type, data: str) -> Any:
    task = kind.__new__(kind)
    task.cfg = SimpleNamespace(data=data)
    return task


@pytest.mark.parametrize(
    ("kind", "files", "kept"),
    [
        (MaelmTask, ("dict.txt", "tokenizer.json", "manifest.json"), ["dict.txt", "tokenizer.json"]),
        (TaggingTask, ("dict.txt", "manifest.json"), ["dict.txt", "manifest.json"]),
        (SentencesTask, SENTENCES, ["input0/dict.txt", "label/dict.txt"]),
        (SentencePredictionTask, SENTENCES, ["input0/dict.txt", "label/dict.txt"]),
    ],
)
def test_files_of_the_tasks(kind: type, files: tuple[str, ...], kept: list[str], tmp_path: Path) -> None:
    data, folder = write(tmp_path / "data", *files), tmp_path / "saved"
    folder.mkdir()
    task = task_of(kind, f"{data}:{tmp_path / 'another shard'}")
    for _ in range(2):  # The second time nothing is missing.
        write_with_first_checkpoint(read_setup_files(task, folder))
        write_waiting_files()
        assert sorted(contents(folder)) == kept
        assert contents(folder).items() <= contents(data).items()
    assert read_setup_files(task_of(kind, str(folder)), folder) == {}
    (data / kept[0]).write_text("b 1")
    (folder / kept[1]).unlink()
    with pytest.raises(ValueError, match=rf"^{folder / kept[0]} differs from {data / kept[0]}: .*--save-dir"):
        read_setup_files(task, folder)
    assert contents(folder) == {kept[0]: "a 1"}, "nothing is overwritten, and nothing added"


def test_a_task_that_was_prepared_again_is_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "data", tmp_path / "saved"]
    for changed, folder in enumerate(folders):
        folder.mkdir()
        manifest = {"files": {"train": [{"changed_ns": changed}]}, "tagging": {"labels": ["a"]}, "outputs": {}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert read_setup_files(task_of(TaggingTask, str(folders[0])), folders[1]) == {}


def test_other_tasks_keep_nothing(tmp_path: Path) -> None:
    write(tmp_path / "data", "dict.txt")
    task = SimpleNamespace(cfg=SimpleNamespace(data=str(tmp_path / "data")))
    assert read_setup_files(task, tmp_path / "new") == {}
