"""Results that look like success and are not."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints import reader
from fairseq_maelm.finetuning.doubtful_results import (
    START,
    doubt_about,
    numbers_as_classes,
    report_on_classes,
    report_on_training,
)


@pytest.mark.parametrize(
    ("metrics", "right", "expected"),
    [
        ({"accuracy": 75.0, "f1": 85.7}, "aaab" * 90, "examples is not higher than the 75.0 % of always answering 'a'"),
        (
            {"accuracy": 66.7},
            "aaaabb",
            "may be chance, because the 95 % interval, 22.3 to 95.7, includes the 66.7 % of alw",
        ),
        ({"accuracy": 0.0}, "ab" * 3, "accuracy 0.0 % on 6 examples is not higher than the 50.0 % of always answering"),
        (
            {"accuracy": 100.0},
            "aab",
            "may be chance, because the 95 % interval, 29.2 to 100.0, includes the 66.7 % of always",
        ),
        ({"accuracy": 88.9}, "aaaaaaaab" * 2, "may be chance, because the 95 % interval, 65.3 to 98.6"),
        ({"mcc": 0.0}, "aab" * 6, "mcc 0.0 on 18 examples may be chance"),
        ({"f1": 0.0}, "ab" * 18, "f1 is 0.0, as for a model that has learned nothing"),
        ({"f1": 0.0}, "ab" * 17, "f1 0.0 on 34 examples may be chance"),
        ({"accuracy": 80.0, "f1": 0.0}, "aaab" * 900, "f1 is 0.0, as for a model that has learned nothing"),
        ({"spearman": float("nan")}, "", "spearman is nan"),
        ({"exact": 50.0, "HasAns_f1": 0.0}, "", "HasAns_f1 is 0.0"),
        (
            {"accuracy": 61.1, "mcc": 20.0},
            "ab" * 9,
            "61.1 % on 18 examples may be chance, because the 95 % interval, 35.7 to",
        ),
        ({"accuracy": 61.1, "mcc": 20.0}, "ab" * 90, None),
        ({"accuracy": 100.0, "mcc": 0.0}, "aaa", None),
    ],
)
def test_what_a_constant_answer_reaches_too_is_doubtful(
    metrics: dict[str, float], right: str, expected: str | None
) -> None:
    found = doubt_about(metrics, right)
    assert (expected is None) == (found is None) and (expected or "") in (found or "")


@pytest.mark.parametrize(
    ("best", "valid", "expected"),
    [
        (70.0, {"a": 750, "b": 250}, "70.0 % on 1,000 examples is not higher than the 75.0 % of always answering 'a'"),
        (80.0, {"a": 3, "b": 2}, "80.0 % on 5 examples may be chance"),
        (
            90.0,
            {"a": 11, "b": 9},
            "accuracy 90.0 is from 20 validation examples (95 % interval: 68.3 to 98.8); the same",
        ),
    ],
)
def test_a_score_is_judged_by_its_number_of_examples(
    best: float,
    valid: dict[str, int],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are those of the first validation set, which chooses the best checkpoint."""
    (tmp_path / "checkpoint_best.pt").touch()
    splits = {
        "valid": {"labels": valid},
        "valid1": {"labels": {"a": 1, "b": 1}},
        "train": {"labels": {**valid, "c": 1}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"splits": splits}))
    sections = {"dataset": {"valid_subset": "valid,valid1"}, "checkpoint": {"best_checkpoint_metric": "accuracy"}}
    config = OmegaConf.create({**sections, "task": {"mix_start": True}})
    state = {"extra_state": {"best": best}, "task_state": {START: "the head starts from the frozen encoder: 60 %"}}
    monkeypatch.setattr(reader, "read_checkpoint", lambda path: SimpleNamespace(config=config, state=state))
    with caplog.at_level("INFO"):
        report_on_training(tmp_path, tmp_path)
    assert expected in caplog.text and "no validation example has the label 'c'" in caplog.text
    assert "chose the mixture of weights; the head starts from the frozen encoder: 60 %" in caplog.text
    assert {record.levelname for record in caplog.records[:1]} == {"INFO" if best == 90.0 else "WARNING"}


def test_numbers_that_are_read_as_classes() -> None:
    assert "the 3 labels are numbers, but each of them becomes a class: give --regression" in str(
        numbers_as_classes(["1.5", "2", "3"])
    )
    assert numbers_as_classes([str(number) for number in range(100)])
    for labels in (["0", "1"], ["1", "2", "3", "4", "5"], ["1.5", "good"], ["nan", "inf"]):
        assert numbers_as_classes(labels) is None


def test_the_report_has_each_class_and_its_confusions() -> None:
    lines = report_on_classes(["a", "a", "b", "b"], ["a", "b", "b", "b"]).splitlines()
    assert lines[2].split() == ["a", "1.000", "0.500", "0.667", "2"]
    assert lines[3].split() == ["b", "0.667", "1.000", "0.800", "2"]
    assert [line.split() for line in lines[-2:]] == [["a", "1", "1"], ["b", "0", "2"]]
