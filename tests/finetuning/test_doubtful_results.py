"""Results that look like success and are not."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from fairseq_maelm.checkpoints import reader
from fairseq_maelm.finetuning.doubtful_results import (
    doubt_about,
    numbers_as_classes,
    report_on_classes,
    warn_about_training,
)


@pytest.mark.parametrize(
    ("metrics", "right", "expected"),
    [
        ({"accuracy": 75.0, "f1": 85.7}, "aaab", "75.0 % is not higher than the 75.0 % of always answering 'a'"),
        ({"accuracy": 80.0, "f1": 0.0}, "aaab" * 900, "f1 is 0.0, as for a model that has learned nothing"),
        ({"spearman": float("nan")}, "", "spearman is nan"),
        ({"exact": 50.0, "HasAns_f1": 0.0}, "", "HasAns_f1 is 0.0"),
        ({"accuracy": 61.1, "mcc": 20.0}, "ab" * 9, "may be chance: on 18 examples, only more than 73.6 % would"),
        ({"accuracy": 61.1, "mcc": 20.0}, "ab" * 90, None),
        ({"accuracy": 100.0, "mcc": 0.0}, "aaa", None),
    ],
)
def test_what_a_constant_answer_reaches_too_is_doubtful(
    metrics: dict[str, float], right: str, expected: str | None
) -> None:
    found = doubt_about(metrics, right)
    assert (expected is None) == (found is None) and (expected or "") in (found or "")


def test_the_first_validation_set_is_that_of_the_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoint_best.pt").touch()
    splits = {"valid": {"labels": {"a": 3, "b": 1}}, "valid1": {"labels": {"a": 1, "b": 1}}}
    (tmp_path / "manifest.json").write_text(json.dumps({"splits": splits}))
    config = OmegaConf.create(
        {"dataset": {"valid_subset": "valid,valid1"}, "checkpoint": {"best_checkpoint_metric": "accuracy"}}
    )
    checkpoint = SimpleNamespace(config=config, state={"extra_state": {"best": 70.0}})
    monkeypatch.setattr(reader, "read_checkpoint", lambda path: checkpoint)
    warn_about_training(tmp_path, tmp_path)
    assert "the accuracy of 70.0 % is not higher than the 75.0 % of always answering 'a'" in caplog.text


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
