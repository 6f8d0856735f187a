"""The report: choice of settings, medians and averages worked out by hand, and failures that it must show."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.studies.folder import study_folder
from fairseq_maelm.studies.grid import Run, Setting
from fairseq_maelm.studies.report import as_csv, as_markdown, write_report
from fairseq_maelm.studies.scores import (
    DIVERGED,
    FAILED,
    FINISHED,
    MISSING,
    Outcome,
    average,
    averaged_tasks,
    best_of,
    collect,
    median_with_losses,
)
from fairseq_maelm.studies.tables import difference_of_medians, markdown_table

# A seed's result: its scores on the validation sets, or its state.
Result = Any


def setting(lr: float) -> Setting:
    return Setting((("lr", lr), ("batch-size", 16), ("epochs", 3), ("warm-up", 0.06)))


def outcomes(results: dict[float, Sequence[Result]], task: str = "T", model: str = "M") -> list[Outcome]:
    """Return the outcomes of seeds whose settings differ in the learning rate."""
    found = []
    for lr, seeds in results.items():
        for seed, result in enumerate(seeds, 1):
            run = Run(task, model, setting(lr), seed)
            if isinstance(result, str):
                found.append(Outcome(run, result, (), {"failed": result}))
            else:
                scores = result if isinstance(result, tuple) else (float(result),)
                found.append(Outcome(run, FINISHED, scores, {}))
    return found


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        # Medians 61 and 62; the first has the higher mean (64.4 > 61.8) and the best seed.
        ({1e-5: [60, 61, 80, 60.5, 61], 2e-5: [62, 61, 63, 62, 61]}, (2e-5, (62.0,))),
        ({1e-5: [70, 60, 62, 90]}, (1e-5, (66.0,))),
        # Of five seeds the third best: 90, 80, 70 | lost, lost.
        ({1e-5: [80, DIVERGED, 90, FAILED, 70]}, (1e-5, (70.0,))),
        # Three lost: there is no median, and one good seed cannot win.
        ({1e-5: [99, DIVERGED, DIVERGED, 98, FAILED], 2e-5: [50] * 5}, (2e-5, (50.0,))),
        ({1e-5: [DIVERGED, DIVERGED, 98]}, (None, ())),
        # Equal medians are decided by the mean, and then by the order.
        ({1e-5: [60, 61, 62], 2e-5: [60.5, 61, 62]}, (2e-5, (61.0,))),
        ({1e-5: [60, 61, 62], 2e-5: [62, 61, 60]}, (1e-5, (61.0,))),
        # The first validation set chooses, and each has its median.
        ({1e-5: [(80.0, 70.0), (81.0, 90.0), (82.0, 80.0)], 2e-5: [(79.0, 99.0)] * 3}, (1e-5, (81.0, 80.0))),
    ],
)
def test_the_median_chooses_and_lost_seeds_count_as_worse_than_any(
    results: dict[float, Sequence[Result]], expected: tuple[float | None, tuple[float, ...]]
) -> None:
    cell = best_of(outcomes(results))
    assert (cell.setting["lr"] if cell.setting else None, cell.scores) == expected


def test_a_setting_with_missing_seeds_waits_for_them() -> None:
    cell = best_of(outcomes({1e-5: [90, MISSING, MISSING], 2e-5: [60, 70, 80]}))
    assert cell.setting is not None and cell.setting["lr"] == 2e-5
    assert not cell.complete, "the choice may still change"
    assert cell.states == {FINISHED: 4, MISSING: 2}
    assert best_of(outcomes({2e-5: [60, 70, 80]})).complete
    nothing = best_of(outcomes({2e-5: [MISSING]}))
    assert (nothing.setting, nothing.scores, nothing.complete) == (None, (), False)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9), st.integers(0, 9))
def test_lost_seeds_never_raise_a_median(scores: list[float], lost: int) -> None:
    assert median_with_losses(scores, lost) <= median_with_losses(scores, 0)
    assert (median_with_losses(scores, lost) == -math.inf) == (lost >= len(scores))


def test_the_average_of_the_paper() -> None:
    """Table 1, base setting, MAE-LM: MNLI's two sets are one task, and eight tasks make 86.1."""
    scores = {
        "MNLI": (87.2, 87.1), "QQP": (91.6,), "QNLI": (92.9,), "SST-2": (93.8,), "CoLA": (63.1,), "RTE": (79.1,),
        "MRPC": (90.2,), "STS-B": (90.9,),
    }  # fmt: skip
    assert average(scores, list(scores)) == pytest.approx(86.09, abs=0.01)
    assert average(scores, ["MNLI", "RTE"]) == pytest.approx((87.15 + 79.1) / 2)
    assert average(scores, [*scores, "WNLI"]) is None
    assert average({**scores, "MNLI": (84.5, math.nan)}, list(scores)) is None
    assert average(scores, []) is None


# The folder

GRID: dict[tuple[str, str], dict[float, Sequence[Result]]] = {
    ("RTE", "ours"): {1e-5: [60.0, 62.0, 61.0], 2e-5: [70.0, DIVERGED, 72.0]},
    ("RTE", "random"): {1e-5: [50.0, 51.0, 52.0], 2e-5: [FAILED, 47.0, 53.0]},
    ("MNLI", "ours"): {1e-5: [(80.0, 81.0), (82.0, 83.0), (81.0, 85.0)], 2e-5: [(70.0, 70.0)] * 3},
    ("MNLI", "random"): {1e-5: [(40.0, 41.0)] * 3, 2e-5: [(30.0, 30.0)] * 3},
    ("SQuAD", "ours"): {1e-5: [75.0] * 3},
    ("SQuAD", "random"): {1e-5: [10.0] * 3},
}
PAPER: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "RTE": {"base": {"MAE-LM": (79.1,), "ALBERT": ()}, "large++": {"MAE-LM": (88.8,)}},
    "MNLI": {"base": {"MAE-LM": (87.2, 87.1), "ALBERT": (81.6, math.nan)}},
    "SQuAD": {"base": {"MAE-LM": (84.1,)}},
}
REASONS = {DIVERGED: "exit status 1: FloatingPointError: gradients are Nan/Inf", FAILED: "exit status 1: disk | full"}


def write_sweep(folder: Path, grid: dict[tuple[str, str], dict[float, Sequence[Result]]]) -> Path:
    """Write a sweep's folder as its runs would."""
    tasks = dict.fromkeys(task for task, _ in grid)
    about = {
        "tasks": {
            task: {"metric": "f1" if task == "SQuAD" else "accuracy", "figures": ["accuracy"], "paper": PAPER[task],
                   "subsets": ["valid", "valid1"] if task == "MNLI" else ["valid"]}
            for task in tasks
        },
        "models": {model: {"checkpoint": "x", "random": model == "random"} for _, model in grid},
    }  # fmt: skip
    made = [each for (task, model), results in grid.items() for each in outcomes(results, task, model)]
    with study_folder(folder, {"runs": {str(each.run.folder): each.run.as_json() for each in made}}, about):
        for each in made:
            each.run.marker(folder).parent.mkdir(parents=True)
            if each.state in REASONS:
                write_json(each.run.marker(folder), {"failed": REASONS[each.state]})
            elif each.state == FINISHED:
                metrics = {"accuracy": each.scores[0], "loss": 0.5}
                numbers = {"score": each.scores[0], "scores": list(each.scores), "figures": metrics}
                write_json(each.run.marker(folder), {**numbers, "epoch": 3, "updates": 30, "seconds": 9.0})
    return folder


def table_of(text: str, number: int = 0) -> dict[str, list[str]]:
    """Return a table of a report as the first cell of each line -> the other cells."""
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()]
    assert len({len(line) for line in lines}) == 1
    return {line[0]: line[1:] for line in lines}


def test_the_table_beside_the_paper(tmp_path: Path) -> None:
    lines = table_of(as_markdown(collect(write_sweep(tmp_path / "sweep", GRID))))
    assert lines[""] == ["RTE (accuracy)", "MNLI (accuracy)", "SQuAD (f1)", "AVG"]
    # RTE at 2e-5: 72, 70, lost. AVG: (70 + (81 + 83) / 2) / 2 = 76; SQuAD is not a task of GLUE.
    assert lines["ours"] == [
        "70.0 (70.0..72.0; 1 of 3 seeds without a score)", "81.0/83.0 (80.0..82.0/81.0..85.0)", "75.0 (75.0..75.0)",
        "76.0",
    ]  # fmt: skip
    # At 2e-5: 53, 47, lost; so 51 at 1e-5 is better than 47. AVG: (51 + 40.5) / 2 = 45.75.
    assert lines["random"] == ["51.0 (50.0..52.0)", "40.0/41.0 (40.0..40.0/41.0..41.0)", "10.0 (10.0..10.0)", "45.8"]
    assert lines["paper, base: MAE-LM"] == ["79.1", "87.2/87.1", "84.1", "83.1"]
    assert lines["paper, base: ALBERT"] == ["–", "81.6/–", "–", "–"]
    assert lines["paper, large++: MAE-LM"] == ["88.8", "–", "–", "–"]


def test_what_failed_and_diverged_is_shown(tmp_path: Path) -> None:
    text = as_markdown(collect(write_sweep(tmp_path / "sweep", GRID)))
    settings = [line.split("|")[1:-1] for line in text.split("\n\n")[4].splitlines()[2:]]
    counted = {(line[0].strip(), line[1].strip()): [cell.strip() for cell in line[2:]] for line in settings}
    assert counted["RTE", "ours"] == ["lr 2e-05, batch-size 16, epochs 3, warm-up 0.06", "5", "1", "0", "0"]
    assert counted["RTE", "random"][1:] == ["5", "0", "1", "0"]
    failed, diverged = text.split("\n\n")[5:9:2], text.split("\n\n")[7:]
    assert failed[0] == "Runs that failed:" and "disk | full" in text
    assert "FloatingPointError" in diverged[-1] and "/seed_2/run.log" in diverged[-1]
    assert "missing" not in text


def test_the_first_model_is_compared_with_the_others(tmp_path: Path) -> None:
    """Only tasks without lost seeds are compared; the interval is that of `difference_of_medians`."""
    text = as_markdown(collect(write_sweep(tmp_path / "sweep", GRID)))
    assert text.split("\n\n")[2].startswith("Differences of these medians, with 95 % intervals")
    lines = table_of(text, 1)
    assert lines[""] == ["ours - random"]
    assert lines["RTE"] == ["–"] and lines["MNLI"] == ["+41.0 (+40.0 to +42.0)"]
    assert lines["SQuAD"] == ["+65.0 (+65.0 to +65.0)"]
    alone = {("RTE", "ours"): GRID["RTE", "ours"]}
    assert "Differences" not in as_markdown(collect(write_sweep(tmp_path / "alone", alone)))


def test_rows_of_the_paper_can_be_chosen(tmp_path: Path) -> None:
    sweep = collect(write_sweep(tmp_path / "sweep", GRID))
    lines = table_of(as_markdown(sweep, ["large++"]))
    assert [name for name in lines if name.startswith("paper")] == ["paper, large++: MAE-LM"]
    with pytest.raises(ValueError, match="no recipe has published rows named small: choose from base, large"):
        as_markdown(sweep, ["small"])


def test_only_tasks_that_all_models_have_finished_are_averaged(tmp_path: Path) -> None:
    grid = {**GRID, ("MNLI", "random"): {1e-5: [(40.0, 41.0), MISSING, MISSING]}}
    sweep = collect(write_sweep(tmp_path / "sweep", grid))
    assert averaged_tasks(sweep) == ["RTE"]
    text = as_markdown(sweep)
    lines = table_of(text)
    assert (lines["ours"][-1], lines["random"][-1], lines["paper, base: MAE-LM"][-1]) == ("70.0", "51.0", "79.1")
    assert lines["random"][1] == "40.0/41.0 (40.0..40.0/41.0..41.0) [2 runs missing]"
    assert "AVG: mean over RTE, without MNLI, SQuAD." in text
    assert f"2 of {len(sweep.outcomes)} runs are missing: the table is not final." in text


def test_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    text = write_report(write_sweep(tmp_path / "sweep", {("RTE", "ours"): {1e-5: [MISSING] * 2}}))
    assert table_of(text)["ours"] == ["– [2 runs missing]", "–"]
    assert "no task has a final score" in text
    assert not (tmp_path / "sweep" / "spread.png").exists()


def test_all_runs_are_in_the_csv(tmp_path: Path) -> None:
    sweep = collect(write_sweep(tmp_path / "sweep", {**GRID, ("SQuAD", "random"): {1e-5: [MISSING] * 3}}))
    lines = list(csv.DictReader(io.StringIO(as_csv(sweep))))
    assert len(lines) == len(sweep.outcomes) == 30
    first = lines[0]
    assert (first["task"], first["model"], first["lr"], first["batch-size"]) == ("RTE", "ours", "1e-05", "16")
    assert (first["seed"], first["state"], first["score"], first["loss"]) == ("1", FINISHED, "60.0", "0.5")
    states = [line["state"] for line in lines]
    assert (states.count(DIVERGED), states.count(FAILED), states.count(MISSING)) == (1, 1, 3)
    assert {line["reason"] for line in lines if line["state"] == FAILED} == {"exit status 1: disk | full"}
    assert [line["lr"] for line in lines if line["chosen"] == "yes" and line["task"] == "RTE"] == ["2e-05"] * 3 + [
        "1e-05"
    ] * 3


def test_the_files_of_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = write_sweep(tmp_path / "sweep", GRID)
    text = write_report(folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == text
    assert (folder / "spread.png").read_bytes().startswith(b"\x89PNG")
    first = (folder / "spread.svg").read_bytes()
    write_report(folder)
    assert (folder / "spread.svg").read_bytes() == first
    with pytest.raises(FileNotFoundError, match="has no study"):
        write_report(tmp_path)


def test_a_table_can_be_read_as_it_is() -> None:
    table = markdown_table(["", "b"], [["a | x", "10"], ["1.50", "–"]])
    assert table.splitlines() == ["|       | b   |", "|-------|-----|", "| a / x | 10  |", "| 1.50  | –   |"]


def test_the_interval_of_a_difference_of_medians() -> None:
    """Of three values each, 27 draws: the median is the least or the greatest in 7 of them, more than 2.5 %."""
    found = difference_of_medians([70.0, 71.0, 72.0], [60.0, 61.0, 62.0])
    assert found is not None and str(found) == "+10.0 (+8.0 to +12.0)"
    same = difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    assert same is not None and same.median == 0.0 and same.low < 0.0 < same.high
    assert same == difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    equal = difference_of_medians([60.0] * 3, [59.0] * 3)
    assert equal == pytest.approx((1.0, 1.0, 1.0))
    assert difference_of_medians([60.0, 61.0], [60.0, 61.0, 62.0]) is None
