"""The jobs of a plan."""

from pathlib import Path

from fairseq_maelm.studies.plan import Steps


def test_jobs_wait_for_those_of_the_same_row_whatever_its_name(tmp_path: Path) -> None:
    steps = {
        "first": {"each": "row", "marker": "{row}/first", "run": "true"},
        "second": {"each": "row", "after": "first", "marker": "{row}/second", "run": "true"},
    }
    jobs = Steps({"steps": steps}, {"half": {}, "MAE-LM, half": {}}, {}, {"output": tmp_path}, []).jobs()
    needed = {job.name: [own.name for group in job.after for own in group] for job in jobs}
    assert needed == {
        "half/first": [],
        "MAE-LM, half/first": [],
        "half/second": ["half/first"],
        "MAE-LM, half/second": ["MAE-LM, half/first"],
    }
