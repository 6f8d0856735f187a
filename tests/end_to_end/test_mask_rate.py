"""A masking rate that falls over the updates of a run, through fairseq-train."""

import shutil

import pytest

from end_to_end.small import cut, differences, results, training, updates
from end_to_end.toy import run, train_log

RATES = ["--mask-prob", 0.5, "--mask-prob-end", 0.1, "--update-freq", 2]


def test_the_rate_falls_and_a_resumed_run_goes_on_with_it(toy_data, tmp_path):
    """Five updates of two batches make an epoch, so the seventh of twelve is made in the middle of the second."""
    data = cut(toy_data, tmp_path / "data", 160)
    options = [*RATES, "--max-update", 12]
    whole = [*options, "--num-workers", 2, "--save-interval-updates", 7]
    output = run(training(data, tmp_path / "whole", *whole))
    shares = [entry["masked"] for entry in updates(output) if entry["split"] == "train_inner"]
    assert shares == pytest.approx([50 - 40 * number / 12 for number in range(12)], abs=2.0)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint_2_7.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    again = updates(run(training(data, tmp_path / "resumed", *options, "--data-buffer-size", 0)))
    assert again[0]["num_updates"] == 8 and again == updates(output)[-len(again) :]
    last = (results(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "resumed"))
    assert differences(*last) == []


def test_validation_predicts_the_fraction_of_the_end(toy_data, tmp_path):
    """So that its losses compare with those of a run at that constant rate."""
    command = [*training(toy_data, tmp_path, "--max-update", 1, "--lr", 0, *RATES)]
    command.remove("--disable-validation")
    (entry,) = (entry for entry in train_log(run(command)) if entry["split"] == "valid")
    assert float(entry["valid_masked"]) == pytest.approx(10.0, abs=0.5)
