"""Runs that are killed: nothing half done looks whole, and the same request finishes the work with the same result."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep.programs import is_running, wait_until

from fairseq_maelm.corpus import prepare, steps
from fairseq_maelm.corpus.steps import ordered_map

from .texts import contents, make_documents, settings_for, write_text


class Killed(BaseException):
    """Stands for the end of the process: nothing in the package may catch it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus of a few chunks."""
    monkeypatch.setattr(steps, "CHUNK_BYTES", 4000)
    write_text(tmp_path / "text.txt", make_documents(40))
    return tmp_path


def count_renames(monkeypatch: pytest.MonkeyPatch, allowed: int) -> list[Path]:
    """End the process at the rename after ``allowed`` ones; every finished file gets its name by a rename."""
    done: list[Path] = []
    rename = os.replace

    def replace(source: Any, target: Any) -> None:
        if len(done) == allowed:
            raise Killed
        done.append(Path(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    return done


def test_killed_at_every_rename_and_resumed_gives_the_same_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        renames = count_renames(patch, allowed=10**9)
        prepare(settings_for(folder, shards=2))
    expected = contents(folder / "data")
    assert len(renames) > 20
    assert renames[-1] == folder / "data"
    for allowed in range(len(renames)):
        settings = settings_for(folder, shards=2, output=folder / f"killed{allowed}")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            count_renames(patch, allowed)
            prepare(settings)
        assert not (settings.output / "manifest.json").exists()
        prepare(settings)
        assert contents(settings.output) == expected


CHILD = """
import sys
from pathlib import Path
from fairseq_maelm.corpus import PrepareSettings, prepare, steps
steps.CHUNK_BYTES = 4000
folder = Path(sys.argv[1])
prepare(PrepareSettings(
    inputs=(folder / "text.txt",), output=folder / "data", valid_documents=5, vocabulary_size=120, workers=2))
"""


def child_processes(parent: int) -> list[int]:
    """Return the numbers of the processes that ``parent`` started."""
    return [int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_kill_9_while_workers_encode(folder: Path) -> None:
    if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
        pytest.skip("needs Linux's /proc")
    write_text(folder / "text.txt", make_documents(3000))
    search_path = [str(Path(steps.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], env=environment)
    parts = folder / ".data.unfinished" / "parts_inputs"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("part*.npz"))) < 3:
        assert child.poll() is None and time.monotonic() < deadline, "the child ended before it could be killed"
        time.sleep(0.002)
    workers = child_processes(child.pid)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(workers) == 2
    assert not (folder / "data" / "manifest.json").exists()
    finished_parts = {path: path.stat().st_mtime_ns for path in parts.glob("part*.npz")}
    wait_until(lambda: not any(map(is_running, workers)), 20)  # workers do not outlive their killed parent

    kept: list[Path] = []
    encode = steps.encode

    def encode_and_look(*arguments: Any) -> dict[str, Any]:
        state = encode(*arguments)
        kept.extend(path for path, changed in finished_parts.items() if path.stat().st_mtime_ns == changed)
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "encode", encode_and_look)
        prepare(settings_for(folder))
    assert kept == list(finished_parts)
    expected = prepare(settings_for(folder, output=folder / "at_once"))
    assert contents(folder / "data") == contents(expected.folders[0])


def kill_worker(task: int) -> int:
    if task == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_killed_worker_ends_the_run_with_advice() -> None:
    with pytest.raises(ChildProcessError, match="a worker process was killed.* resume"):
        list(ordered_map(kill_worker, range(20), workers=2))


def test_tasks_are_taken_only_as_they_are_needed() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    results = ordered_map(abs, tasks(), workers=2)
    assert [next(results) for _ in range(50)] == list(range(50))
    assert taken < 60
    results.close()
