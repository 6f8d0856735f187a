"""The jobs of a plan."""

from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.sweep.folder import study_folder
from fairseq_maelm.sweep.plan import Steps


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


@pytest.mark.parametrize("seeds", ["3 5 7", [3, 5, 7], {"3": {}, "5": {}}])
def test_values_of_an_axis_may_be_words_a_list_or_a_table(seeds: Any, tmp_path: Path) -> None:
    steps = {"first": {"each": "seed", "marker": "{seed}/first", "run": "true"}}
    plan = Steps({"steps": steps, "seeds": seeds}, {}, {}, {"output": tmp_path, "seeds": seeds}, [], 2)
    assert [job.name for job in plan.jobs()] == ["3/first", "5/first"]


@pytest.mark.parametrize("key", ["after", "after-all"])
@pytest.mark.parametrize("other", ["second", "third", "unknown"])
def test_a_step_waits_for_earlier_ones_only(key: str, other: str, tmp_path: Path) -> None:
    own = {"marker": "m", "run": "true"}
    steps = {"first": own, "second": {**own, key: other}, "third": own}
    with pytest.raises(ValueError, match=f"the plan's step 'second' waits for '{other}': list that step before it"):
        Steps({"steps": steps}, {}, {}, {"output": tmp_path}, [])


def test_commands_and_texts_of_a_plan_are_settings(tmp_path: Path) -> None:
    def settings(run: str, text: str) -> dict[str, Any]:
        content = {"steps": {"first": {"marker": "m", "run": run}}, "texts": {"more": text}}
        return Steps(content, {}, {}, {"output": tmp_path}, []).settings()

    with study_folder(tmp_path / "study", settings("train --lr 1", "a")):
        pass
    for run, text in (("train --lr 99", "a"), ("train --lr 1", "b")):
        other = study_folder(tmp_path / "study", settings(run, text))
        with pytest.raises(ValueError, match="holds a study with other settings .(steps first|texts more): "), other:
            pass
