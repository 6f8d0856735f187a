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


def test_finished_runs_are_skipped_and_a_failure_stops_no_other(tmp_path: Path, capsys: Any) -> None:
    bad = program(tmp_path, "bad", "import sys; sys.exit('the reason')")
    good, other = (program(tmp_path, name, counting(tmp_path)) for name in ("good", "other"))
    ended: list[Any] = []
    good.result = lambda log: {}  # such as of a preparation
    other.ended = lambda: ended.append(other.marker.exists())
    for _ in range(2):
        run([bad, good, other], ["", ""])
    assert calls(tmp_path) == 2, "good and other, once each"
    assert (read_json(good.marker), read_json(other.marker), ended) == ({}, {"output": 7.0}, [True])
    assert read_json(bad.marker) == {"failed": "exit status 1: the reason"}
    said = capsys.readouterr().err
    assert "bad: FAILED, exit status 1: the reason" in said and "2 of 3 runs done earlier" in said
    # After the cause is fixed, only the failed job is run, if it is asked for.
    fixed = program(tmp_path, "bad", counting(tmp_path))
    run([fixed, good], [""], retry_failed=False)
    assert calls(tmp_path) == 2
    run([fixed, good], [""])
    assert calls(tmp_path) == 3


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


def test_logs_are_continued_only_where_the_program_goes_on(tmp_path: Path) -> None:
    for name, resumes in (("restarts", False), ("resumes", True)):
        job = program(tmp_path, name, "print(1)", resumes=resumes)
        for _ in range(2):
            job.marker.unlink(missing_ok=True)
            run([job], [""])
        assert job.log.read_text().count("$ ") == (2 if resumes else 1)


SWEEP = """
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
    jobs = [Job("x", marker, words) for marker, words in zip(markers, commands)]
    with sitting("sweep"):
        Runner(["", ""], 0, None, True, False).do(jobs)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_stopped_stops_its_programs_and_their_children(sent: int, tmp_path: Path) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP, encoding="utf-8")
    sweep = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True)
    children = [tmp_path / name for name in ("a", "b")]
    wait_until(lambda: all(child.exists() and child.read_text().endswith(" ") for child in children))
    sweep.send_signal(sent)
    assert "interrupted; the same command continues" in sweep.communicate(timeout=120)[1]
    assert sweep.returncode == 130
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
    job = Job("job", tmp_path, ["x y"], environment={"A": "b c"})
    assert str(job.process("2,3")) == "A='b c' CUDA_VISIBLE_DEVICES=2,3 'x y'"
