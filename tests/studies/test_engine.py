"""The job runner: finished jobs are skipped; failures, interruptions, and programs of killed runners."""

import fcntl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.studies import engine as running
from fairseq_maelm.studies.engine import Job, LocalLauncher, is_finished, read_json, run, unfinished

from .programs import calls, counting, is_running, program, wait_until


def test_finished_runs_are_skipped_and_a_failure_keeps_back_its_followers_only(tmp_path: Path, capsys: Any) -> None:
    kept_back = program(tmp_path, "kept_back", counting(tmp_path))
    jobs = [
        program(tmp_path, "bad", "import sys; sys.exit('the reason')", kept_back),
        program(tmp_path, "good", counting(tmp_path), program(tmp_path, "after", counting(tmp_path))),
    ]
    for _ in range(2):
        run(jobs, ["", ""])
    assert calls(tmp_path) == 2, "good and after, once each"
    assert read_json(jobs[1].marker) == {"output": 7.0}
    assert read_json(jobs[0].marker) == {"failed": "exit status 1: the reason"}
    assert not kept_back.marker.exists()
    assert "bad: FAILED, exit status 1: the reason" in capsys.readouterr().err
    # After the cause is fixed, only the failed job and its follower are run.
    jobs[0] = program(tmp_path, "bad", counting(tmp_path), kept_back)
    assert unfinished(jobs, retry_failed=False) == []
    run(jobs, [""], retry_failed=False)
    assert calls(tmp_path) == 2
    run(jobs, [""])
    assert calls(tmp_path) == 4
    assert unfinished(jobs) == []


def test_reasons_name_what_was_raised(tmp_path: Path) -> None:
    raising = "import sys\ntry:\n  raise FloatingPointError('loss scale')\nfinally:\n  print('bye', file=sys.stderr)"
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    wrong = program(tmp_path, "wrong", "print('no number')")
    jobs = [program(tmp_path, "raising", raising), program(tmp_path, "killed", killed), wrong]
    run(jobs, [""])
    reasons = [(read_json(job.marker) or {})["failed"] for job in jobs]
    assert reasons[0] == "exit status 1: FloatingPointError: loss scale"
    assert reasons[1].startswith("killed by SIGKILL: $ ")
    assert "could not convert" in reasons[2]


def test_what_has_ended_is_told_after_its_marker_is_there(tmp_path: Path) -> None:
    seen = []
    good, bad = program(tmp_path, "good", "print(1)"), program(tmp_path, "bad", "raise SystemExit(3)")
    for job in (good, bad):
        job.ended = lambda job=job: seen.append((job.name, job.marker.exists()))
    run([good, bad], [""])
    assert seen == [("good", True), ("bad", True)]


def test_logs_are_continued_only_where_the_program_goes_on(tmp_path: Path) -> None:
    for name, resumes in (("restarts", False), ("resumes", True)):
        job = program(tmp_path, name, "print(1)", resumes=resumes)
        for _ in range(2):
            job.marker.unlink(missing_ok=True)
            run([job], [""])
        assert job.log.read_text().count("$ ") == (2 if resumes else 1)


def test_an_interrupted_run_is_stopped_and_has_no_marker(tmp_path: Path, monkeypatch: Any) -> None:
    started = tmp_path / "started"
    code = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
open({str(started)!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    job = program(tmp_path, "endless", code)

    def interrupt(job: Job) -> str:
        if started.exists() and started.read_text():
            raise KeyboardInterrupt
        return job.name

    monkeypatch.setattr(running, "_progress", interrupt)
    monkeypatch.setattr(running, "_SHOW_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run([job], [""])
    assert not job.marker.exists()
    # Its child ends too; on a busy machine that takes a while.
    wait_until(lambda: not is_running(int(started.read_text())))


def test_a_run_that_outlived_its_runner_is_waited_for(tmp_path: Path) -> None:
    """Two programs in one folder of checkpoints would destroy both."""
    job = program(tmp_path, "job", counting(tmp_path), resumes=True)
    with open(job.log, "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        orphan = subprocess.Popen(["sleep", "600"], stdout=log)
    launcher = LocalLauncher(1)
    try:
        assert launcher.start(job, "") is None
        assert not job.log.read_text()
    finally:
        orphan.kill()
        orphan.wait()
    run([job], [""], launcher)
    assert is_finished(job.marker) and calls(tmp_path) == 1


def test_gpus_are_given_to_processes(tmp_path: Path) -> None:
    jobs = [program(tmp_path, f"job{number}", "import os; print(os.environ['SLOT'])") for number in range(4)]
    run(jobs, ["3", "5"])
    assert {(read_json(job.marker) or {})["output"] for job in jobs} == {3.0, 5.0}
