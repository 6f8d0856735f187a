"""Folders are complete or absent, earlier outputs are kept, and a manifest records a folder's origin."""

import errno
import fcntl
import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import files_of_at_most

from fairseq_maelm.files.atomic import (
    CorpusError,
    atomic_file,
    copy_file,
    refuse_existing,
    remove_partial_files,
    sha256_of,
)
from fairseq_maelm.files.prepared_folder import (
    checksums_of,
    made_from,
    prepare_folder,
    read_manifest,
    whole_folder,
)

KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
sys.modules["fairseq"] = None  # must not be imported
from fairseq_maelm.files.prepared_folder import whole_folder
with whole_folder(Path(sys.argv[1]), "maelm export") as folder:
    (folder / "config.json").write_text("{}")
    os._exit(9)
"""


def write(target: Path, content: str, replace: bool = False) -> None:
    with whole_folder(target, "maelm export", replace) as folder:
        (folder / "file").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_to_a_full_disk_names_the_target(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(10_000))
    copy_file(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == bytes(10_000)
    with files_of_at_most(5000), pytest.raises(OSError, match="File too large") as caught:
        copy_file(tmp_path / "source", tmp_path / "target")
    assert caught.value.filename == str(tmp_path / "target") and names(tmp_path) == ["copy", "source"]


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    with whole_folder(target, "maelm export") as folder:
        (folder / "file").write_text("text")
        assert not target.exists()
        assert names(target.parent) == [".folder.lock", ".folder.unfinished"]
    assert names(target.parent) == ["folder"]
    assert (target / "file").read_text() == "text"
    plain = tmp_path / "plain"
    plain.mkdir()
    assert target.stat().st_mode == plain.stat().st_mode, "readable by those who may read any new folder"


def test_an_empty_folder_may_be_there_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    write(tmp_path / "target", "text")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    write(tmp_path / "link", "text")
    assert names(tmp_path) == ["link", "other", "target"]
    assert (tmp_path / "other" / "file").exists() and (tmp_path / "target" / "file").exists()


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), whole_folder(tmp_path / "target", "maelm export") as folder:
        (folder / "config.json").write_text("{}")
        raise error
    assert names(tmp_path) == []


def test_a_killed_process_leaves_nothing_that_looks_whole_and_the_next_run_clears_up(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", KILLED, str(tmp_path / "target"), str(root)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    assert names(tmp_path) == [".target.lock", ".target.unfinished"]
    write(tmp_path / "target", "text")
    assert names(tmp_path) == ["target"]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, "first")
    with pytest.raises(FileExistsError, match="give --replace"):
        write(target, "second")
    with pytest.raises(FileExistsError, match="name another folder, or remove it first$"):
        whole_folder(target, "maelm import").__enter__()
    with pytest.raises(ValueError, match="wrong"), whole_folder(target, "maelm export", replace=True):
        raise ValueError("wrong")
    assert names(tmp_path) == ["target"] and (target / "file").read_text() == "first"
    write(target, "second", replace=True)
    write(target, "third", replace=True)
    assert names(tmp_path) == ["target", "target.old-1", "target.old-2"]
    contents = [(tmp_path / name / "file").read_text() for name in names(tmp_path)]
    assert contents == ["third", "first", "second"]


def test_two_processes_are_kept_apart(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_folder(target, "maelm export") as folder:
        (folder / "file").write_text("ours")
        with pytest.raises(CorpusError, match=r"another `maelm export` is writing to .*target \(this process"):
            write(target, "theirs")
    assert names(tmp_path) == ["target"] and (target / "file").read_text() == "ours"


def test_a_file_system_without_locks_is_told_and_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*unused: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    write(tmp_path / "target", "text")
    assert names(tmp_path) == ["target"] and "has no locks: do not start a second run in it" in caplog.text


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(FileExistsError), whole_folder(target, "maelm export"):
        target.mkdir()
        (target / "file").write_text("theirs")
    assert names(tmp_path) == ["target"] and (target / "file").read_text() == "theirs"


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    with pytest.raises(FileExistsError, match="name another file, or remove it first$"):
        write(tmp_path / "target", "second", replace=True)
    assert (tmp_path / "target").read_text() == "text"


class Preparation:
    """A preparation of text.txt that counts its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.fails = folder, 0, False
        self.error: Exception = ValueError("wrong")
        (folder / "text.txt").write_text("some text")

    def run(self, size: int = 1, name: str = "text.txt", resumes: bool = False) -> dict[str, Any]:
        origin = made_from({"max_size": size}, {"train": [self.folder / name]})
        return prepare_folder(self.folder / "data", "glue", origin, self.write, resumes, copies=["shard"])

    def write(self, folder: Path) -> Mapping[str, Any]:
        self.calls += 1
        (folder / "shard").mkdir()
        (folder / "shard" / "text").write_text("some text")
        (folder.parent / "work").write_text("done")
        if self.fails:
            raise self.error
        return {"counts": {"train": 1}}


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    return Preparation(tmp_path)


def test_the_manifest_tells_what_was_made_of_what(preparation: Preparation, caplog: pytest.LogCaptureFixture) -> None:
    manifest = preparation.run()
    data, text = preparation.folder / "data", preparation.folder / "text.txt"
    assert names(preparation.folder) == ["data", "text.txt"]
    assert manifest == read_manifest(data, "glue") == json.loads((data / "shard" / "manifest.json").read_text())
    assert {name: manifest[name] for name in ("kind", "settings", "counts")} == {
        "kind": "glue",
        "settings": {"max_size": 1},
        "counts": {"train": 1},
    }
    assert manifest["outputs"] == {"shard/text": {"bytes": 9, "sha256": sha256_of(text)}}
    assert manifest["files"]["train"][0]["sha256"] == sha256_of(text)
    caplog.set_level(logging.INFO)
    assert preparation.run() == manifest and preparation.calls == 1
    assert "already prepared from these files with these settings: nothing to do" in caplog.text


def test_something_else_is_named(preparation: Preparation) -> None:
    preparation.run()
    with pytest.raises(
        CorpusError, match="was prepared differently: --max-size was 1 and is now 2; name another folder, or"
    ):
        preparation.run(size=2)
    (preparation.folder / "other.txt").write_text("some text")
    with pytest.raises(CorpusError, match=r"train had the file .*text\.txt and now has .*other\.txt"):
        preparation.run(name="other.txt")
    (preparation.folder / "text.txt").write_text("some text")
    assert preparation.run(), "the same again, though written later"
    (preparation.folder / "text.txt").write_text("other text")
    with pytest.raises(CorpusError, match=r"the file .*text\.txt has changed"):
        preparation.run()
    (preparation.folder / "text.txt").write_text("some text")
    (preparation.folder / "data" / "shard" / "text").write_text("")
    with pytest.raises(CorpusError, match="text is missing or was changed: remove .*data and prepare it again"):
        preparation.run()


def test_a_foreign_folder_is_left_alone(preparation: Preparation) -> None:
    data = preparation.folder / "data"
    data.mkdir()
    (data / "thesis.txt").write_text("ten years of work")
    with pytest.raises(FileExistsError, match="data exists already: name another folder, or remove it first"):
        preparation.run()
    for content, message in (
        ("{}", "was not written by `maelm prepare glue` of this version"),
        ('{"format": 1, "kind": "squad"}', "was not written by `maelm prepare glue` of this version"),
        ("{", r"manifest\.json is not JSON"),
    ):
        (data / "manifest.json").write_text(content)
        with pytest.raises(CorpusError, match=message):
            preparation.run()
    assert names(data) == ["manifest.json", "thesis.txt"] and preparation.calls == 0


def test_failed_work_is_kept_for_those_who_resume(preparation: Preparation) -> None:
    preparation.fails = True
    with pytest.raises(ValueError, match="wrong"):
        preparation.run()
    assert names(preparation.folder) == ["text.txt"]
    with pytest.raises(ValueError, match="wrong"):
        preparation.run(resumes=True)
    unfinished = preparation.folder / ".data.unfinished"
    assert (unfinished / "work").exists()
    with pytest.raises(CorpusError, match=r"\.data\.unfinished was prepared differently: --max-size was 1"):
        preparation.run(size=2, resumes=True)
    preparation.fails = False
    preparation.run(resumes=True)
    assert names(preparation.folder) == ["data", "text.txt"]
    assert names(preparation.folder / "data") == ["manifest.json", "shard"], "of this run alone"


def test_of_wrong_input_nothing_is_kept_so_that_it_can_be_corrected(preparation: Preparation) -> None:
    preparation.fails, preparation.error = True, CorpusError("--max-size must be at least 2")
    with pytest.raises(CorpusError, match="at least 2"):
        preparation.run(resumes=True)
    assert names(preparation.folder) == ["text.txt"]
    preparation.fails = False
    (preparation.folder / "text.txt").write_text("right text")
    assert preparation.run(size=2, resumes=True)["settings"] == {"max_size": 2}


def test_what_was_left_after_the_end_is_removed(preparation: Preparation) -> None:
    preparation.run()
    (preparation.folder / ".data.unfinished").mkdir()
    preparation.run()
    assert names(preparation.folder) == ["data", "text.txt"]


@pytest.mark.parametrize(("size", "content"), [(9, bytes(8) + b"x"), (2**22 + 1, bytes(2**22))])
def test_a_changed_size_is_noticed_at_once_and_other_content_in_small_files(
    size: int, content: bytes, tmp_path: Path
) -> None:
    origin, file = made_from({}, {}), tmp_path / "target" / "train.bin"

    def prepare() -> None:
        prepare_folder(
            file.parent, "corpus", origin, lambda folder: {"n": (folder / file.name).write_bytes(bytes(size))}
        )

    prepare()
    prepare()
    file.write_bytes(content)
    with pytest.raises(CorpusError, match="train.bin is missing or was changed"):
        prepare()


def test_checksums_of_data_are_those_of_the_shard_or_of_the_files(tmp_path: Path) -> None:
    """Test splits decide nothing in training, and the position of a folder does not count."""
    outputs = {f"shard{shard}/{name}": {"bytes": 1, "sha256": f"{shard}" * 64} for shard in "01" for name in "ab"}
    manifest = {"format": 1, "kind": "corpus", "settings": {}, "files": {}, "outputs": outputs}
    for shard in "01":
        (tmp_path / f"shard{shard}").mkdir()
        (tmp_path / f"shard{shard}" / "manifest.json").write_text(json.dumps(manifest))
        assert checksums_of(tmp_path / f"shard{shard}") == dict.fromkeys("ab", shard * 16)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("train.bin", "test.bin", "notes.md"):
        (foreign / name).write_bytes(b"1")
    before = checksums_of(foreign)
    (foreign / "train.bin").write_bytes(b"2")
    assert before.keys() == {"train.bin"} and checksums_of(foreign) != before


def test_what_killed_runs_left_of_a_file_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    left, other, foreign = (tmp_path / name for name in ("a.txt.99999.partial", "b.txt.99999.partial", "a.txt.old"))
    for path in (left, other, foreign):
        path.write_text("half")
    program = (
        "import sys; from pathlib import Path; from fairseq_maelm.files.atomic import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])): print('open', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", program, str(tmp_path / "a.txt")]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "open\n"
        refuse_existing(tmp_path / "a.txt")
        assert names(tmp_path) == sorted(["a.txt.old", f"a.txt.{writer.pid}.partial", other.name])
        writer.communicate()
    assert (tmp_path / "a.txt").exists() and writer.returncode == 0
    with pytest.raises(ValueError, match="wrong"), atomic_file(tmp_path / "c.txt"):
        raise ValueError("wrong")
    assert not list(tmp_path.glob("c.txt*"))
    # Downloads of other programs have no process id.
    download = tmp_path / "texts" / "dump.xml.partial"
    download.parent.mkdir()
    download.write_text("half")
    remove_partial_files(tmp_path)
    assert download.exists() and not other.exists()
    with pytest.raises(FileExistsError, match="cannot hold two results"):
        refuse_existing(tmp_path / "d.txt", tmp_path / "x" / ".." / "d.txt")
