"""The job runner: finished jobs are skipped; failures, interruptions, and programs of killed runners."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.sweep.jobs import Job, LocalLauncher, is_finished, read_json, run

from .programs import calls, counting, is_running, program, wait_until


def test_finished_runs_are_skipped_and_a_failure_keeps_back_only_what_needs_it(tmp_path: Path, capsys: Any) -> None:
    bad = program(tmp_path, "bad", "import sys; sys.exit('the reason')")
    good = program(tmp_path, "good", counting(tmp_path))
    kept_back = program(tmp_path, "kept_back", counting(tmp_path), bad, good)
    # As the run that is best on the development set: it needs one of several, when all have ended.
    best = program(tmp_path, "best", counting(tmp_path))
    best.after, best.file = [[bad, good]], lambda: tmp_path / ("best.json" if is_finished(good.marker) else "nothing")
    good.result = lambda log: {}  # such as of a preparation
    jobs = [bad, kept_back, program(tmp_path, "after", counting(tmp_path), good), best, good]
    for _ in range(2):
        run(jobs, ["", ""])
    assert calls(tmp_path) == 3, "good, after and best, once each"
    assert (read_json(good.marker), read_json(tmp_path / "best.json")) == ({}, {"output": 7.0})
    assert read_json(bad.marker) == {"failed": "exit status 1: the reason"}
    assert not kept_back.marker.exists()
    said = capsys.readouterr().err
    assert (
        "bad: FAILED, exit status 1: the reason" in said
        and "kept_back: NOT RUN, since a job that it needs failed" in said
    )
    assert "3 of 5 runs done earlier" in said
    # After the cause is fixed, only the failed job and what needs it are run.
    fixed = program(tmp_path, "bad", counting(tmp_path))
    kept_back.after[0] = [fixed]
    run([fixed, kept_back], [""], retry_failed=False)
    assert calls(tmp_path) == 3
    run([fixed, kept_back], [""])
    assert calls(tmp_path) == 5


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


def test_what_follows_comes_before_new_beginnings(tmp_path: Path) -> None:
    """An interrupted study has whole rows; a job's end is reported when its marker is there."""
    first, second = (program(tmp_path, name, "print(1)") for name in "ab")
    jobs, ended = [first, second, program(tmp_path, "c", "print(1)", first)], []
    for job in jobs:
        job.ended = lambda job=job: ended.append((job.name, job.marker.exists()))
    run(jobs, [""])
    assert ended == [("a", True), ("c", True), ("b", True)]


def test_logs_are_continued_only_where_the_program_goes_on(tmp_path: Path) -> None:
    for name, resumes in (("restarts", False), ("resumes", True)):
        job = program(tmp_path, name, "print(1)", resumes=resumes)
        for _ in range(2):
            job.marker.unlink(missing_ok=True)
            run([job], [""])
        assert job.log.read_text().count("$ ") == (2 if resumes else 1)


STUDY = """
import sys
from pathlib import Path
from fairseq_maelm.sweep.jobs import Job
from fairseq_maelm.sweep.runner import Runner, sitting

CODE = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    "open(sys.argv[1], 'w').write(f'{child.pid} '); child.wait()"
)
if __name__ == "__main__":
    markers = [Path(sys.argv[1]) / f"{name}.json" for name in "ab"]
    commands = [[sys.executable, "-c", CODE, str(marker.with_suffix(""))] for marker in markers]
    jobs = [Job("x", marker, lambda words=words: words) for marker, words in zip(markers, commands)]
    with sitting("study"):
        Runner(["", ""], 0, None, True, False).do(jobs)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_stopped_stops_its_programs_and_their_children(sent: int, tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(STUDY, encoding="utf-8")
    study = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True)
    children = [tmp_path / name for name in ("a", "b")]
    wait_until(lambda: all(child.exists() and child.read_text().endswith(" ") for child in children))
    study.send_signal(sent)
    assert "interrupted; the same command continues" in study.communicate(timeout=120)[1]
    assert study.returncode == 130
    assert not list(tmp_path.glob("*.json"))
    # On a busy machine they take a while to end.
    wait_until(lambda: not any(is_running(int(child.read_text())) for child in children))


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
    jobs = [
        program(tmp_path, f"job{number}", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])") for number in range(4)
    ]
    run(jobs, ["3", "5"])
    assert {(read_json(job.marker) or {})["output"] for job in jobs} == {3.0, 5.0}
    job = Job("job", tmp_path, lambda: ["x y"], environment={"A": "b c"})
    assert str(job.process("2,3")) == "A='b c' CUDA_VISIBLE_DEVICES=2,3 'x y'"
    job.one_gpu = True
    assert job.process("2,3").environment == {"A": "b c", "CUDA_VISIBLE_DEVICES": "2"}
