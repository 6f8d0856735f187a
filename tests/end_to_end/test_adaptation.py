"""Pretraining goes on with text of a domain: mixed with general text, resumed, on two ranks, and stopped in time."""

import re
from pathlib import Path

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset

from end_to_end.small import BLANK_LINE, cut, differences, results, write_split
from end_to_end.test_distributed import run_ranks
from end_to_end.toy import TINY_TRAINING, losses, run

START = re.compile(r"general loss at the start: ([\d.]+) bits per masked token, at most ([\d.]+) allowed")


@pytest.fixture(scope="module")
def checkpoint(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a few updates on general text."""
    folder = tmp_path_factory.mktemp("general")
    run(["fairseq-train", toy_data, *TINY_TRAINING, "--save-dir", folder, "--max-update", 6, "--disable-validation"])
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def domain(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few lines for training and for validation."""
    folder = cut(toy_data, tmp_path_factory.mktemp("domain"), lines=24)
    other = cut(toy_data, tmp_path_factory.mktemp("other"), lines=12, first=24)
    lines = [item for item in MMapIndexedDataset(str(other / "train")) if len(item) > 1]
    write_split(folder / "valid", (item for line in lines for item in (line, BLANK_LINE)))
    return folder


def adapting(domain: Path, general: Path | str, checkpoint: Path, save_dir: Path, *options: object) -> list[object]:
    return [
        *["fairseq-train", domain, *TINY_TRAINING, "--save-dir", save_dir, "--finetune-from-model", checkpoint],
        *["--general-data", general, "--valid-subset", "valid,general", *options],
    ]


@pytest.mark.slow
def test_general_text_is_mixed_in_and_the_run_resumes(toy_data, domain, checkpoint, tmp_path):
    options = ["--general-ratio", 0.5, "--general-loss-bound", 5, "--max-epoch", 3, "--batch-size", 8]
    # As `maelm prepare corpus --shards` writes them, only the first shard has a valid split.
    general = f"{toy_data}:{cut(toy_data, tmp_path / 'shard01', lines=12)}"
    output = run(adapting(domain, general, checkpoint, tmp_path / "whole", *options))
    blocks = re.search(r"an epoch takes (\d+) blocks of the domain and (\d+) of the general text", output)
    assert blocks is not None and blocks[1] == "24" and int(blocks[2]) >= 4
    valid = [line for line in output.splitlines() if re.search(r"\| (valid|general) \| \{", line)]
    assert [re.search(r"\| (valid|general) \|", line)[1] for line in valid] == ["valid", "general"] * 3  # type: ignore[index]

    # Stopped after the first epoch and within the second, and the same command again.
    run(adapting(domain, general, checkpoint, tmp_path / "parts", *options, "--max-epoch", 1))
    second = run(adapting(domain, general, checkpoint, tmp_path / "parts", *options, "--max-update", 6))
    resumed = run(adapting(domain, general, checkpoint, tmp_path / "parts", *options))
    found = [START.search(each) is not None for each in (output, second, resumed)]
    assert found == [True, False, False], "measured before the first update alone"
    paths = [tmp_path / name / "checkpoint_last.pt" for name in ("whole", "parts")]
    assert differences(*map(results, paths)) == []
    assert losses(resumed, "valid")[-1] == losses(output, "valid")[-1]
    kept = [torch.load(path)["extra_state"]["metrics"]["general_at_start"] for path in paths]
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_two_ranks_stop_together_and_keep_the_last_good_checkpoint(toy_data, domain, checkpoint, tmp_path):
    # The learning rate grows until the model falls apart. Without --max-epoch fairseq would begin another epoch.
    growing = ["--lr", 2.0, "--warmup-updates", 200, "--batch-size", 4, "--clip-norm", 0]
    options = [*growing, "--general-loss-bound", 0.05, "--ddp-backend", "legacy_ddp"]
    output = run_ranks(adapting(domain, toy_data, checkpoint, tmp_path / "run", *options), 2, tmp_path)
    start = START.search(output)
    reason = re.search(r"stopping training: the general loss is ([\d.]+) bits.*, above its bound of ([\d.]+)", output)
    assert start is not None and reason is not None
    assert float(reason[1]) > float(reason[2]) == float(start[2]) == pytest.approx(float(start[1]) + 0.05, abs=0.0015)
    assert "done training" in output

    # What is left is of the validation before, on the domain's best loss too.
    general = [float(found) for found in re.findall(r'"general_loss": "([\d.]+)"', output)]
    assert 2 <= len(general) < 30 and max(general[:-1]) <= float(start[2]) < general[-1]
    last = torch.load(tmp_path / "run" / "checkpoint_last.pt")
    assert last["extra_state"]["train_iterator"]["epoch"] == len(general)
    assert last["optimizer_history"][-1]["num_updates"] == 3 * (len(general) - 1)
    wrong = [*adapting(domain, toy_data, checkpoint, tmp_path / "no", *options), "--valid-subset", "valid"]
    assert "needs the validation set 'general': give --valid-subset valid,general" in run(wrong, check=False)
