"""A corpus in several folders: one folder an epoch, in turn, also when the run is stopped in between."""

import re

import pytest

from end_to_end.small import cut, differences, results, training, updates
from end_to_end.toy import run

LINES = (16, 24)
LAST = "checkpoint_last.pt"


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
