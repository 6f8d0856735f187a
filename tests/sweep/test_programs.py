"""Programs side by side: results, failures and interruptions, here and through submitit's executor for one machine."""

import argparse
import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.sweep.programs import Program, Runner, add_runner_arguments, read_marker, runner_of

from .programs import is_running, marking, marks, program, wait_until


def runner(*words: str, most_gpus: int = 1) -> Runner:
    """The runner of a command line."""
    parser = argparse.ArgumentParser()
    add_runner_arguments(parser)
    return runner_of(parser.parse_args(words), most_gpus)


def slurm(*words: str) -> Runner:
    pytest.importorskip("submitit")
    return runner("--slurm", "cluster=local", "timeout_min=5", *words)


def test_finished_programs_are_skipped_and_a_failure_stops_no_other(tmp_path: Path, capsys: Any) -> None:
    bad = program(tmp_path, "bad", "import sys; sys.exit('the reason')")
    good, other = (program(tmp_path, name, marking(tmp_path, name[0])) for name in ("good", "other"))
    ended: list[Any] = []
    good.result = lambda log: {}  # such as of a preparation
    other.ended = lambda: ended.append(other.marker.exists())
    for _ in range(2):
        assert Runner(["", ""]).run([bad, good, other]) == {"bad": "exit status 1: the reason"}
    assert sorted(marks(tmp_path)) == ["g", "o"], "once each"
    assert (read_marker(good.marker), read_marker(other.marker), ended) == ({}, {"output": 7.0}, [True])
    said = capsys.readouterr().err
    assert "2 of 3 runs done earlier\n[3/3] bad: FAILED, exit status 1: the reason" in said
    # After the cause is fixed, only the failed program is run, if it is asked for.
    fixed = program(tmp_path, "bad", marking(tmp_path, "b"))
    with pytest.raises(ValueError, match=r"1 run has no result \(bad: .*the reason\); --retry-failed runs it again"):
        runner().do([fixed, good])
    assert "b" not in marks(tmp_path)
    assert runner("--retry-failed").run([fixed, good]) == {} and marks(tmp_path).count("b") == 1


def test_reasons_name_what_was_raised(tmp_path: Path) -> None:
    raising = "import sys\ntry:\n  raise FloatingPointError('loss scale')\nfinally:\n  print('bye', file=sys.stderr)"
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    programs = {"raising": raising, "killed": killed, "wrong": "print('no number')"}
    reasons = Runner([""]).run([program(tmp_path, *each) for each in programs.items()])
    assert reasons["raising"] == "exit status 1: FloatingPointError: loss scale"
    assert reasons["killed"].startswith("killed by SIGKILL: $ ") and "could not convert" in reasons["wrong"]


@pytest.mark.parametrize(
    ("resumes", "failed", "kept"), [(False, "killed", 1), (True, "killed", 2), (True, "diverged", 1)]
)
def test_logs_are_continued_only_where_the_program_goes_on(
    resumes: bool, failed: str, kept: int, tmp_path: Path
) -> None:
    own = program(tmp_path, "own", "print(1)", resumes)
    for _ in range(2):
        assert Runner([""]).run([own]) == {}
        write_json(own.marker, {"failed": failed})
    assert own.log.read_text().count("$ ") == kept


SWEEP = """
import sys
from pathlib import Path
from fairseq_maelm.sweep.programs import Program, Runner, sitting

CODE = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    "open(sys.argv[1], 'w').write(f'{child.pid} '); child.wait()"
)
if __name__ == "__main__":
    markers = [Path(sys.argv[1]) / f"{name}.json" for name in "abc"]
    commands = [[sys.executable, "-c", CODE, str(marker.with_suffix(""))] for marker in markers]
    with sitting("sweep"):
        Runner(["", ""]).do([Program("x", marker, words) for marker, words in zip(markers, commands)])
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
    assert not list(tmp_path.glob("*.json")) and not (tmp_path / "c").exists()
    # On a busy machine they take a while to end.
    wait_until(lambda: not any(is_running(int(child.read_text())) for child in children))


def test_a_program_that_outlived_its_sweep_is_waited_for(tmp_path: Path) -> None:
    """Two programs in one folder of checkpoints would destroy both."""
    own = program(tmp_path, "own", marking(tmp_path, "[", "]"), resumes=True)
    with open(own.log, "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        orphan = subprocess.Popen([sys.executable, "-c", marking(tmp_path, "(", ")")], stdout=log)
    assert Runner([""]).run([own]) == {}
    assert orphan.wait() == 0 and marks(tmp_path) == "()[]", "both at once"


@pytest.mark.parametrize(
    ("words", "slots", "gpus"),
    [
        ([], [""], 0),
        (["--jobs", "3"], ["", "", ""], 0),
        (["--gpus", "0", "0", "1"], ["0", "0", "1"], 1),
        (["--gpus", "0,1", "2,3"], ["0,1", "2,3"], 2),
        (["--slurm", "cluster=local", "gpus_per_node=1"], [""] * 100, 1),
        (["--jobs", "7", "--slurm", "cluster=local"], [""] * 7, 0),
    ],
)
def test_slots(words: list[str], slots: list[str], gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    found = runner(*words, most_gpus=2)
    assert (found.slots, found.gpus, found.slurm is None) == (slots, gpus, "--slurm" not in words)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    if "--gpus" in words:
        with pytest.raises(ValueError, match="but torch finds no GPU here"):
            runner(*words, most_gpus=2)
        assert runner(*words, "--dry-run", most_gpus=2).slots == slots, "for another machine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0", "1,2"], "same number of GPUs"),
        (["--gpus", "0,1"], "a run has at most 1 GPU: write --gpus 0 1"),
        (["--slurm", "cluster=local", "gpus_per_node=2"], "a run has at most 1 GPU"),
        (["--slurm", "cluster=pbs"], "choose from slurm and local"),
        (["--slurm", "cluster=local", "color=red"], "--slurm: .*Unknown argument 'color'"),
        (["--slurm", "cluster=local", "timeout_min=long"], "timeout_min"),
        (["--slurm", "partition=gpu"], "there is no SLURM on this machine"),
    ],
)
def test_contradictions_are_refused(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=message):
        runner(*words)


def test_programs_get_the_gpus_of_their_slot(tmp_path: Path) -> None:
    variable = "import os, time; time.sleep(1); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    programs = [program(tmp_path, name, variable) for name in "abcd"]
    assert Runner(["3", "5"]).run(programs) == {}
    assert sorted((read_marker(each.marker) or {})["output"] for each in programs) == [3.0, 3.0, 5.0, 5.0]
    own = Program("own", tmp_path, ["x y"], environment={"A": "b c"})
    assert own.command("2,3") == ["env", "A=b c", "CUDA_VISIBLE_DEVICES=2,3", "x y"]


def test_jobs_succeed_and_fail_through_submitit(tmp_path: Path) -> None:
    """The jobs run at the same time, and their markers are in one folder."""
    good, bad = program(tmp_path, "good", "print(5)"), program(tmp_path, "bad", "raise FloatingPointError('nan')")
    good.log.write_text("an earlier attempt\n")
    assert slurm("--jobs", "2").run([good, bad]) == {"bad": "exit status 1: FloatingPointError: nan"}
    assert read_marker(good.marker) == {"output": 5.0} and good.log.read_text().startswith("$ ")
    assert not list(tmp_path.rglob("*submitted.json"))


def test_a_submitted_job_is_found_again(tmp_path: Path) -> None:
    """A sweep was stopped after it had submitted a job, which then succeeded."""
    own, stopped = program(tmp_path, "own", marking(tmp_path, "x"), resumes=True), threading.Event()
    stopped.set()
    first, second = slurm(), slurm()
    assert first.slurm is not None and first.slurm.execute(own, "", True, stopped) == "stopped"
    assert (tmp_path / "own.submitted.json").exists()
    wait_until(lambda: list(tmp_path.rglob("*_result.pkl")))
    assert second.run([own]) == {}
    assert marks(tmp_path) == "x" and read_marker(own.marker) == {"output": 7.0}
