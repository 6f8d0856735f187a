"""The report: choice of settings, medians and averages worked out by hand, and failures that it must show."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.sweep.folder import DIVERGED, FAILED, FINISHED, MISSING, Outcome, sweep_folder
from fairseq_maelm.sweep.report import Cell, average, write_report
from fairseq_maelm.sweep.tables import difference_of_medians, with_interval

# A seed's result: its scores on the validation sets, or its state.
Result = Any


def setting(lr: float) -> dict[str, float]:
    return {"lr": lr, "batch-size": 16, "epochs": 3, "warm-up": 0.06}


def outcomes(results: dict[float, Sequence[Result]], task: str = "T", model: str = "M") -> list[Outcome]:
    """Return the outcomes of seeds whose settings differ in the learning rate."""
    found = []
    for lr, seeds in results.items():
        for seed, result in enumerate(seeds, 1):
            axes = {"task": task, "model": model, "setting": setting(lr), "seed": str(seed)}
            marker = Path("runs", task, model, str(lr), f"seed_{seed}", "run.json")
            if isinstance(result, str):
                found.append(Outcome(axes, marker, result, {"failed": result}))
            else:
                scores = result if isinstance(result, tuple) else (float(result),)
                found.append(Outcome(axes, marker, FINISHED, {"score": scores[0], "scores": scores}))
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
        # Settings may have different numbers of seeds, and one that lost all of many does not hide another.
        ({1e-5: [60] * 5, 2e-5: [90, 91, 92]}, (2e-5, (91.0,))),
        ({1e-3: [DIVERGED] * 5, 2e-5: [90, 91, 92]}, (2e-5, (91.0,))),
        # The first validation set chooses, and each has its median.
        ({1e-5: [(80.0, 70.0), (81.0, 90.0), (82.0, 80.0)], 2e-5: [(79.0, 99.0)] * 3}, (1e-5, (81.0, 80.0))),
    ],
)
def test_the_median_chooses_and_lost_seeds_count_as_worse_than_any(
    results: dict[float, Sequence[Result]], expected: tuple[float | None, tuple[float, ...]]
) -> None:
    cell = Cell(outcomes(results))
    assert (cell.outcomes[0].axes["setting"]["lr"] if cell.outcomes else None, tuple(cell.scores)) == expected


def test_a_setting_with_missing_seeds_waits_for_them() -> None:
    cell = Cell(outcomes({1e-5: [90, MISSING, MISSING], 2e-5: [60, 70, 80]}))
    assert cell.outcomes[0].axes["setting"]["lr"] == 2e-5
    assert not cell.complete, "the choice may still change"
    assert Cell(outcomes({2e-5: [60, 70, 80]})).complete
    nothing = Cell(outcomes({2e-5: [MISSING]}))
    assert (nothing.outcomes, nothing.scores, nothing.complete) == ([], [], False)


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
    tasks = {
        task: {"metric": "f1" if task == "SQuAD" else "accuracy", "paper": PAPER[task],
               "subsets": ["valid", "valid1"] if task == "MNLI" else ["valid"]}
        for task, _ in grid
    }  # fmt: skip
    made = [each for (task, model), results in grid.items() for each in outcomes(results, task, model)]
    runs = {str(each.marker.with_suffix("")): each.axes for each in made}
    with sweep_folder(folder, {"models": {model: {} for _, model in grid}, "tasks": tasks, "runs": runs}):
        for each in made:
            (folder / each.marker).parent.mkdir(parents=True)
            if each.state in REASONS:
                write_json(folder / each.marker, {"failed": REASONS[each.state]})
            elif each.state == FINISHED:
                figures = {"accuracy": each.result["score"], "loss": 0.5}
                more = {"figures": figures, "epoch": 3, "updates": 30, "seconds": 9.0}
                write_json(folder / each.marker, {**each.result, **more})
    return folder


def tables_of(text: str) -> list[dict[str, list[str]]]:
    """Return the tables of a report: the first cell of each line -> the other cells, "task, model" of the settings."""
    found = []
    for part in text.split("\n\n"):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
        if part.startswith("|"):
            assert len({len(line) for line in lines}) == 1
            names = 2 if lines[0][0] == "task" else 1
            found.append({", ".join(line[:names]): line[names:] for line in lines})
    return found


def test_the_tables_of_a_finished_sweep(tmp_path: Path) -> None:
    text = write_report(write_sweep(tmp_path, GRID))
    scores, differences, settings = tables_of(text)
    assert scores[""] == ["RTE (accuracy)", "MNLI (accuracy)", "SQuAD (f1)", "AVG"]
    # RTE at 2e-5: 72, 70, lost. AVG: (70 + (81 + 83) / 2) / 2 = 76; SQuAD is not a task of GLUE.
    assert scores["ours"] == [
        "70.0 (70.0..72.0; 1 of 3 seeds without a score)", "81.0/83.0 (80.0..82.0/81.0..85.0)", "75.0 (75.0..75.0)",
        "76.0",
    ]  # fmt: skip
    # At 2e-5: 53, 47, lost; so 51 at 1e-5 is better than 47. AVG: (51 + 40.5) / 2 = 45.75.
    assert scores["random"] == ["51.0 (50.0..52.0)", "40.0/41.0 (40.0..40.0/41.0..41.0)", "10.0 (10.0..10.0)", "45.8"]
    assert scores["paper, base: MAE-LM"] == ["79.1", "87.2/87.1", "84.1", "83.1"]
    assert scores["paper, base: ALBERT"] == ["–", "81.6/–", "–", "–"]
    assert scores["paper, large++: MAE-LM"] == ["88.8", "–", "–", "–"]
    # Only tasks without lost seeds are compared.
    assert [differences[name] for name in ("", "RTE", "MNLI", "SQuAD")] == [
        ["ours - random"], ["–"], ["+41.0 (+40.0 to +42.0)"], ["+65.0 (+65.0 to +65.0)"],
    ]  # fmt: skip
    assert settings["RTE, ours"] == ["lr 2e-05, batch-size 16, epochs 3, warm-up 0.06", "5", "1", "0", "0"]
    assert settings["RTE, random"][1:] == ["5", "0", "1", "0"]
    failed, diverged = text.partition("Runs that failed:")[2].split("Runs that diverged:")
    assert "disk | full" in failed and "FloatingPointError" in diverged and "/seed_2/run.log" in diverged
    assert "missing" not in text and text == (tmp_path / "report.md").read_text(encoding="utf-8")


def test_what_is_missing_is_shown_and_not_averaged(tmp_path: Path) -> None:
    text = write_report(write_sweep(tmp_path, {**GRID, ("MNLI", "random"): {1e-5: [(40.0, 41.0), MISSING, MISSING]}}))
    scores = tables_of(text)[0]
    assert [scores[name][-1] for name in ("ours", "random", "paper, base: MAE-LM")] == ["70.0", "51.0", "79.1"]
    assert scores["random"][1] == "40.0/41.0 (40.0..40.0/41.0..41.0) [2 runs missing]"
    assert "AVG: mean over RTE, without MNLI, SQuAD." in text
    assert "2 of 27 runs are missing: the table is not final." in text
    assert tables_of(text)[1]["MNLI"] == ["\u2013"], "differences need all seeds of both"
    with open(tmp_path / "runs.csv", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    first = {"task": "RTE", "model": "ours", "lr": "1e-05", "batch-size": "16", "seed": "1", "state": FINISHED}
    assert lines[0].items() >= {**first, "score": "60.0", "loss": "0.5", "seconds": "9.0", "chosen": "no"}.items()
    states = [line["state"] for line in lines]
    assert (len(states), states.count(DIVERGED), states.count(FAILED), states.count(MISSING)) == (27, 1, 1, 2)
    assert {line["reason"] for line in lines if line["state"] == FAILED} == {"exit status 1: disk | full"}
    chosen = [line["lr"] for line in lines if line["chosen"] == "yes" and line["task"] == "RTE"]
    assert chosen == ["2e-05"] * 3 + ["1e-05"] * 3


def test_rows_of_the_paper_can_be_chosen_before_anything_is_finished(tmp_path: Path) -> None:
    write_sweep(tmp_path, {("RTE", "ours"): {1e-5: [MISSING] * 2}})
    text = write_report(tmp_path, ["large++"])
    scores = tables_of(text)[0]
    assert scores["ours"] == ["– [2 runs missing]", "–"]
    assert "no task has a final score" in text and "Differences" not in text
    assert [name for name in scores if name.startswith("paper")] == ["paper, large++: MAE-LM"]
    with pytest.raises(ValueError, match="no recipe has published rows named small: choose from base, large"):
        write_report(tmp_path, ["small"])


def test_the_interval_of_a_difference_of_medians() -> None:
    """Of three values each, 27 draws: the median is the least or the greatest in 7 of them, more than 2.5 %."""
    found = difference_of_medians([70.0, 71.0, 72.0], [60.0, 61.0, 62.0])
    assert found is not None and with_interval("+.1f", *found) == "+10.0 (+8.0 to +12.0)"
    assert with_interval(".3g", 1 / 3, None, None) == "0.333"
    same = difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    assert same is not None and same[0] == 0.0 and same[1] < 0.0 < same[2]
    assert same == difference_of_medians([60.0, 61.0, 65.0, 62.0, 61.5], [60.0, 61.0, 65.0, 62.0, 61.5])
    equal = difference_of_medians([60.0] * 3, [59.0] * 3)
    assert equal == pytest.approx((1.0, 1.0, 1.0))
    assert difference_of_medians([60.0, 61.0], [60.0, 61.0, 62.0]) is None
