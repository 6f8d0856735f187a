"""Jobs through submitit, by its executor for one machine."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.sweep.jobs import read_json, run
from fairseq_maelm.sweep.slurm import SlurmLauncher, parse_parameters

from .programs import calls, counting, program, wait_until


@pytest.fixture
def local() -> dict[str, Any]:
    pytest.importorskip("submitit")
    return parse_parameters(["cluster=local", "timeout_min=5"])


def test_jobs_succeed_and_fail_through_submitit(local: dict[str, Any], tmp_path: Path) -> None:
    """The jobs run at the same time, and their markers are in one folder."""
    variable = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    jobs = [program(tmp_path, "good", variable), program(tmp_path, "bad", "raise FloatingPointError('nan')")]
    jobs[0].log.write_text("an earlier attempt\n")
    run(jobs, ["5", "5"], SlurmLauncher(local))
    assert read_json(jobs[0].marker) == {"output": 5.0}
    assert read_json(jobs[1].marker) == {"failed": "exit status 1: FloatingPointError: nan"}
    assert jobs[0].log.read_text().startswith("$ CUDA_VISIBLE_DEVICES=5 ")
    assert not list(tmp_path.rglob("*submitted.json"))


def test_a_submitted_job_is_found_again(local: dict[str, Any], tmp_path: Path) -> None:
    """The sweep was killed after it had submitted a job, which then succeeded."""
    job = program(tmp_path, "job", counting(tmp_path), resumes=True)
    first = SlurmLauncher(local).start(job, "")
    wait_until(lambda: first.job.paths.result_pickle.exists())
    assert read_json(tmp_path / "job.submitted.json") == {"cluster": "local", "job": first.job.job_id}
    run([job], [""], SlurmLauncher(local))
    assert calls(tmp_path) == 1
    assert read_json(job.marker) == {"output": 7.0}


def test_a_job_that_is_gone_is_submitted_again_and_waits_for_its_own_rest(
    local: dict[str, Any], tmp_path: Path
) -> None:
    """A job without a result is submitted again; if its first program still runs, the second one waits for it."""
    mark = f"open({str(tmp_path / 'calls')!r}, 'a').write"
    slow = f"import time; {mark}('('); time.sleep(2); {mark}(')'); print(7)"
    job = program(tmp_path, "job", slow, resumes=True)
    first = SlurmLauncher(local).start(job, "")
    wait_until(lambda: job.log.exists() and "$ " in job.log.read_text())
    # As for a sweep in a new process, which knows the job's number but not its process.
    first.job._process = None
    second = SlurmLauncher(local)
    second._job_class = lambda folder, job_id: first.job
    run([job], [""], second)
    assert job.log.read_text().count("$ ") == 2
    assert (tmp_path / "calls").read_text() == "()()", "both at once"


def test_wrong_parameters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(ValueError, match="--slurm: .*Unknown argument 'color'"):
        SlurmLauncher(parse_parameters(["cluster=local", "color=red"]))
    with pytest.raises(ValueError, match="timeout_min"):
        SlurmLauncher(parse_parameters(["cluster=local", "timeout_min=long"]))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="there is no SLURM on this machine"):
        SlurmLauncher(parse_parameters(["partition=gpu"]))
