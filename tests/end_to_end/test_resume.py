"""A run that was stopped, or killed at any moment, and started again equals one that never stopped: bit for bit."""

import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import LAST, cut, differences, kill_holder, results, start, training, updates, wait_until
from end_to_end.toy import run

# 10 batches of 16 make an epoch, so a run of 24 updates ends in the middle of the third.
UPDATES, MIDDLE, END_OF_EPOCH = 24, 14, 10
AVERAGE = ["--store-ema", "--ema-decay", 0.7, "--update-freq", 2, "--max-update", 12]
MUON = ["--optimizer", "muon", "--precision", "bf16", "--weight-decay", 0.1, "--half-length-until", 0.7]
RATES = ["--mask-prob", 0.5, "--mask-prob-end", 0.1, "--ema-fp32", "--ema-update-freq", 2]
# Options of both runs, and of each run alone. With --update-freq 2 five updates make an epoch.
MECHANISMS: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "muon in bfloat16, growing lengths, and an average": (MUON, [], []),
    "a falling masking rate, a precise average": (RATES, ["--num-workers", 2], ["--data-buffer-size", 0]),
}


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory) -> tuple[Path, str]:
    """The checkpoint and the output of a run that never stopped, which saved a checkpoint on the way."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    output = run(training(data, folder, "--max-update", UPDATES, "--save-interval-updates", MIDDLE))
    assert [entry["epoch"] for entry in updates(output)][-1] == 3
    return folder / LAST, output


def numbers(output: str) -> list[float]:
    """The numbers of the logged updates; an epoch's own entry has none."""
    return [entry["num_updates"] for entry in updates(output) if "num_updates" in entry]


def assert_same_end(checkpoint: Path, output: str, uninterrupted: tuple[Path, str], first: int) -> None:
    """All that a resumed run ends with and logs from update ``first`` on is what the uninterrupted one has."""
    expected, actual = results(uninterrupted[0]), results(checkpoint)
    assert len(expected["model"]) > 40 and len(expected["optimizer"]["state"]) > 40
    assert differences(expected, actual) == []
    resumed = updates(output)
    assert resumed[0]["num_updates"] == first
    assert resumed == updates(uninterrupted[1])[-len(resumed) :]
    assert len([entry for entry in resumed if entry["split"] == "train_inner"]) == expected["updates"] - first + 1


def test_resumed_in_the_middle_of_an_epoch_by_a_data_worker(data, uninterrupted, tmp_path):
    """On to the third epoch, so that an epoch ends in between; the tests below load in the main process."""
    saved = uninterrupted[0].with_name(f"checkpoint_2_{MIDDLE}.pt")
    assert results(saved)["place"]["iterations_in_epoch"] == MIDDLE - END_OF_EPOCH
    shutil.copy(saved, tmp_path / LAST)
    output = run(training(data, tmp_path, "--max-update", UPDATES, "--num-workers", 1))
    assert_same_end(tmp_path / LAST, output, uninterrupted, MIDDLE + 1)


def test_resumed_at_the_end_of_an_epoch(data, uninterrupted, tmp_path):
    run(training(data, tmp_path, "--max-epoch", 1))
    output = run(training(data, tmp_path, "--max-update", UPDATES))
    assert_same_end(tmp_path / LAST, output, uninterrupted, END_OF_EPOCH + 1)


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_changes_during_a_run_goes_on(name, data, tmp_path):
    (options, of_whole, of_rest), whole = MECHANISMS[name], tmp_path / "whole"
    options = [*AVERAGE, *options]
    output = run(training(data, whole, *options, *of_whole, "--save-interval-updates", 7))
    (tmp_path / "rest").mkdir()
    (saved,) = whole.glob("checkpoint_*_7.pt")
    shutil.copy(saved, tmp_path / "rest" / LAST)
    rest = run(training(data, tmp_path / "rest", *options, *of_rest))
    assert_same_end(tmp_path / "rest" / LAST, rest, (whole / LAST, output), 8)
    inner = [entry for entry in updates(output) if entry["split"] == "train_inner"]
    assert results(whole / LAST)["average"] is not None
    if "--mask-prob-end" in options:
        shares = [entry["masked"] for entry in inner]
        assert shares == pytest.approx([50 - 40 * (number * 8 // 12) / 7 for number in range(12)], abs=2.0)
    else:
        assert inner[0]["loss"] - inner[-1]["loss"] > 0.2, "it learns"


def test_resumed_after_kill_9_at_a_random_moment(data, uninterrupted, tmp_path):
    words = training(data, tmp_path, "--max-update", UPDATES, "--save-interval-updates", 3)
    # Late enough for a first save, early enough for the kill to come before the end.
    after, moment = random.Random().randint(4, 12), random.Random().uniform(0.0, 0.1)
    log = tmp_path / "killed.log"
    process = start(words, log)
    wait_until(lambda: max(numbers(log.read_text(encoding="utf-8")), default=0) >= after, process, log)
    time.sleep(moment)
    kill_holder(tmp_path, process)
    reached = numbers(log.read_text(encoding="utf-8"))[-1]
    killed = f"killed {moment:.3f} s after update {after} was logged, the last one was {reached}"
    output = run(words)
    first = numbers(output)[0]
    # From a save (every third update, and the end of an epoch), not from the start.
    assert 1 < first <= reached + 1, killed
    assert_same_end(tmp_path / LAST, output, uninterrupted, int(first))


def test_the_comparison_sees_differences(uninterrupted):
    """Guards the tests above: one changed bit in a weight or in the optimizer does not pass."""
    first = results(uninterrupted[0])
    assert differences(first, results(uninterrupted[0])) == []
    for part in ("model", "optimizer"):
        second = results(uninterrupted[0])
        weight = second["model"]["lm_head.bias"] if part == "model" else second["optimizer"]["state"][3]["exp_avg"]
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
        assert len(differences(first, second)) == 1, part


def test_shards_take_turns_and_resume_where_they_were(toy_data, tmp_path):
    """A corpus in two folders with 2 and 3 batches of 8: one folder an epoch, in turn."""
    parts = [cut(toy_data, tmp_path / str(first), lines, first=first) for first, lines in ((0, 16), (40, 24))]
    shards = ":".join(map(str, parts))

    def shards_read(output: str) -> list[int]:
        return [int(number) for number in re.findall(r"train: (\d+) blocks", output)]

    whole = run(training(shards, tmp_path / "whole", "--batch-size", 8, "--max-epoch", 3))
    # After the last epoch fairseq opens the next one's shard before it stops.
    assert shards_read(whole) == [16, 24, 16, 24]
    assert [entry["train_num_updates"] for entry in updates(whole) if entry["split"] == "train"] == [2, 5, 7]
    run(training(shards, tmp_path / "parts", "--batch-size", 8, "--max-update", 4))
    resumed = run(training(shards, tmp_path / "parts", "--batch-size", 8, "--max-epoch", 3))
    assert shards_read(resumed) == [24, 16, 24]
    assert differences(results(tmp_path / "whole" / LAST), results(tmp_path / "parts" / LAST)) == []
