"""A run that was stopped, or killed at any moment, and started again equals one that never stopped: bit for bit."""

import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from end_to_end.small import LAST, cut, differences, results, start, training, updates, wait_until
from end_to_end.toy import run

# 10 batches of 16 make an epoch, so a run of 24 updates ends in the middle of the third.
UPDATES = 24
MIDDLE, END_OF_EPOCH = 14, 10


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory) -> tuple[Path, str]:
    """The checkpoint and the output of a run that never stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    output = run(training(data, folder, "--max-update", UPDATES))
    assert [entry["epoch"] for entry in updates(output)][-1] == 3
    return folder / LAST, output


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory) -> Path:
    """The checkpoint of a run that stopped in the middle of the second epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    run(training(data, folder, "--max-update", MIDDLE))
    assert results(folder / LAST)["place"]["iterations_in_epoch"] == MIDDLE - END_OF_EPOCH
    return folder / LAST


def assert_same_end(checkpoint: Path, output: str, uninterrupted: tuple[Path, str], first: int) -> None:
    """All that a resumed run ends with and logs from update ``first`` on is what the uninterrupted one has."""
    expected_checkpoint, expected_output = uninterrupted
    expected, actual = results(expected_checkpoint), results(checkpoint)
    assert len(expected["model"]) > 40 and len(expected["optimizer"]["state"]) > 40
    assert differences(expected, actual) == []
    resumed = updates(output)
    assert resumed[0]["num_updates"] == first
    assert resumed == updates(expected_output)[-len(resumed) :]
    assert sum(entry["split"] == "train_inner" for entry in resumed) == UPDATES - first + 1


def test_resumed_in_the_middle_of_an_epoch_by_a_data_worker(data, stopped, uninterrupted, tmp_path):
    """On to the third epoch, so that an epoch ends in between; the tests below load in the main process."""
    shutil.copy(stopped, tmp_path / LAST)
    output = run(training(data, tmp_path, "--max-update", UPDATES, "--num-workers", 1))
    assert_same_end(tmp_path / LAST, output, uninterrupted, MIDDLE + 1)


def test_resumed_at_the_end_of_an_epoch(data, uninterrupted, tmp_path):
    run(training(data, tmp_path, "--max-epoch", 1))
    output = run(training(data, tmp_path, "--max-update", UPDATES))
    assert_same_end(tmp_path / LAST, output, uninterrupted, END_OF_EPOCH + 1)


def test_resumed_after_kill_9_at_a_random_moment(data, uninterrupted, tmp_path):
    words = training(data, tmp_path, "--max-update", UPDATES, "--save-interval-updates", 3)
    # Late enough for a first save, early enough for the kill to come before the end.
    after, moment = random.Random().randint(4, 12), random.Random().uniform(0.0, 0.1)
    log = tmp_path / "killed.log"
    process = start(words, log)
    wait_until(lambda: max(numbers(log.read_text(encoding="utf-8")), default=0) >= after, process, log)
    time.sleep(moment)
    process.kill()
    process.wait()
    reached = numbers(log.read_text(encoding="utf-8"))[-1]
    killed = f"killed {moment:.3f} s after update {after} was logged, the last one was {reached}"
    assert process.returncode == -signal.SIGKILL, killed
    output = run(words)
    first = numbers(output)[0]
    # From a save (every third update, and the end of an epoch), not from the start.
    assert 1 < first <= reached + 1, killed
    assert_same_end(tmp_path / LAST, output, uninterrupted, int(first))


def numbers(output: str) -> list[float]:
    """The numbers of the logged updates; an epoch's own entry has none."""
    return [entry["num_updates"] for entry in updates(output) if "num_updates" in entry]


def test_the_comparison_sees_differences(stopped):
    """Guards the tests above: one changed bit in a weight or in the optimizer does not pass."""
    first = results(stopped)
    assert differences(first, results(stopped)) == []
    for part in ("model", "optimizer"):
        second = results(stopped)
        weight = second["model"]["lm_head.bias"] if part == "model" else second["optimizer"]["state"][3]["exp_avg"]
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
        assert len(differences(first, second)) == 1, part


# A corpus in several folders: one folder an epoch, in turn


LINES = (16, 24)


@pytest.fixture(scope="module")
def shards(toy_data, tmp_path_factory) -> str:
    """Two shards that differ in their number of lines; 2 and 3 batches of 8."""
    folder = tmp_path_factory.mktemp("shards")
    parts = [cut(toy_data, folder / f"shard0{number}", lines, first=40 * number) for number, lines in enumerate(LINES)]
    return ":".join(map(str, parts))


def shards_read(output: str) -> list[int]:
    """The number of lines of each shard that was opened, in order."""
    return [int(number) for number in re.findall(r"train: (\d+) blocks", output)]


def test_shards_take_turns_and_resume_where_they_were(shards, tmp_path):
    whole = run(training(shards, tmp_path / "whole", "--batch-size", 8, "--max-epoch", 3))
    # After the last epoch fairseq opens the next one's shard before it stops.
    assert shards_read(whole) == [16, 24, 16, 24]
    assert [entry["train_num_updates"] for entry in updates(whole) if entry["split"] == "train"] == [2, 5, 7]

    run(training(shards, tmp_path / "parts", "--batch-size", 8, "--max-update", 4))
    resumed = run(training(shards, tmp_path / "parts", "--batch-size", 8, "--max-epoch", 3))
    assert shards_read(resumed) == [24, 16, 24]
    assert differences(results(tmp_path / "whole" / LAST), results(tmp_path / "parts" / LAST)) == []
