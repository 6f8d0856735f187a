"""Folders are whole or absent, and what was there before stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_maelm.interop.whole_folder import UNFINISHED, whole_folder

KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
sys.modules["fairseq"] = None  # spares the import of what is not needed
from fairseq_maelm.interop.whole_folder import whole_folder
with whole_folder(Path(sys.argv[1])) as folder:
    (folder / "config.json").write_text("{}")
    os._exit(9)
"""


def write(target: Path, content: str, replace: bool = False) -> None:
    with whole_folder(target, replace) as folder:
        (folder / "file").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    with whole_folder(target) as folder:
        (folder / "file").write_text("text")
        assert not target.exists()
        assert folder.parent == target.parent and folder.name.endswith(UNFINISHED)
    assert names(target.parent) == ["folder"]
    assert (target / "file").read_text() == "text"
    plain = tmp_path / "plain"
    plain.mkdir()
    assert target.stat().st_mode == plain.stat().st_mode, "readable by those who may read any new folder"


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    write(tmp_path / "target", "text")
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), whole_folder(tmp_path / "target") as folder:
        (folder / "config.json").write_text("{}")
        raise error
    assert names(tmp_path) == []


def test_a_killed_process_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", KILLED, str(tmp_path / "target"), str(root)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    (left,) = names(tmp_path)
    assert left.startswith(".target.") and left.endswith(UNFINISHED)
    write(tmp_path / "target", "text")
    assert names(tmp_path) == [left, "target"]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, "first")
    with pytest.raises(FileExistsError, match="give --replace"):
        write(target, "second")
    with pytest.raises(ValueError, match="wrong"), whole_folder(target, replace=True):
        raise ValueError("wrong")
    assert names(tmp_path) == ["target"] and (target / "file").read_text() == "first"
    write(target, "second", replace=True)
    write(target, "third", replace=True)
    assert names(tmp_path) == ["target", "target.old-1", "target.old-2"]
    contents = [(tmp_path / name / "file").read_text() for name in names(tmp_path)]
    assert contents == ["third", "first", "second"]


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(FileExistsError), whole_folder(target) as folder:
        (folder / "file").write_text("ours")
        write(target, "theirs")
    assert names(tmp_path) == ["target"] and (target / "file").read_text() == "theirs"


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    with pytest.raises(FileExistsError, match="name another folder$"):
        write(tmp_path / "target", "second", replace=True)
    assert (tmp_path / "target").read_text() == "text"
