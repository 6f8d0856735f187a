"""Batches cut over ranks or over time train the same model as one big batch."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from end_to_end.small import LAST, cut, start, training, updates
from end_to_end.toy import run
from fairseq_maelm.modules.autocast import multiplies_bfloat16

# Dropout draws other numbers for other shapes, so it is off where batches are cut in different ways.
NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0"]
# What is a sum or a mean over the update's tokens; padding depends on the cut and times on the machine.
METRICS = ("loss", "ppl", "accuracy", "masked", "wpb", "bsz", "gnorm", "num_updates", "lr")
# The largest relative difference of weights. On processors with bfloat16, Muon multiplies in it; one sequence less
# changes some weights by 6e-2.
ROUNDING = 2e-6
MUON_ROUNDING = 1e-4 if multiplies_bfloat16("cpu") else ROUNDING


def run_ranks(command: list[Any], ranks: int, folder: Path) -> str:
    """Start ranks by hand on this machine, as ``--distributed-rank`` asks for; return the output of the first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        distributed = [
            *["--distributed-world-size", str(ranks), "--distributed-rank", str(rank), "--distributed-no-spawn"],
            *["--distributed-backend", "gloo", "--distributed-init-method", f"tcp://127.0.0.1:{port}"],
        ]
        processes.append(start([*command, *distributed], log))
    try:
        statuses = [process.wait(300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    texts = [log.read_text(encoding="utf-8") for log in logs]
    assert statuses == [0] * ranks, "\n".join(text[-3000:] for text in texts)
    return texts[0]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / LAST)["model"]
    return state


def assert_equal_weights(first: Path, second: Path, rounding: float = ROUNDING) -> None:
    """The last checkpoints in both folders have the same weights but for rounding."""
    own, other = weights(first), weights(second)
    assert own.keys() == other.keys()
    for name, tensor in own.items():
        difference = (tensor - other[name]).double().norm() / tensor.double().norm().clamp_min(1e-3)
        assert difference < rounding, f"{name}: relative difference {difference:.1e}"


def assert_equal_runs(
    first: tuple[Path, str], second: tuple[Path, str], number: int, rounding: float = ROUNDING
) -> None:
    """Both made the same updates: equal weights but for rounding, equal metrics as far as they are printed."""
    assert_equal_weights(first[0], second[0], rounding)
    entries = [[entry for entry in updates(text) if entry["split"] == "train_inner"] for _, text in (first, second)]
    assert len(entries[0]) == len(entries[1]) == number
    for one, two in zip(*entries):
        for metric in METRICS:
            assert one[metric] == pytest.approx(two[metric], rel=1e-3), f"{metric} of update {one['num_updates']}"


def test_update_freq_equals_one_batch(toy_data, tmp_path):
    """All data are in one batch, so that every way to cut it gives the same updates: one an epoch."""
    data = cut(toy_data, tmp_path / "data", lines=4)
    one, four = tmp_path / "one", tmp_path / "four"
    outputs = [
        run(training(data, one, *NO_DROPOUT, "--batch-size", 4, "--max-epoch", 4)),
        run(training(data, four, *NO_DROPOUT, "--batch-size", 1, "--update-freq", 4, "--max-epoch", 4)),
    ]
    assert_equal_runs((one, outputs[0]), (four, outputs[1]), 4)


@pytest.mark.parametrize(("update_freq", "lines", "number"), [(1, 36, 6), (2, 52, 4)])
def test_two_ranks_equal_update_freq_with_an_odd_number_of_batches(update_freq, lines, number, toy_data, tmp_path):
    """In an epoch's last update the second rank has one batch less; its dummy batch must not count, its others must."""
    data = cut(toy_data, tmp_path / "data", lines=lines)
    options = [*NO_DROPOUT, "--batch-size", 8, "--max-epoch", 2, "--ddp-backend", "legacy_ddp"]
    options += ["--optimizer", "muon", "--clip-norm", 0]
    command = training(data, tmp_path / "ranks", *options, "--update-freq", update_freq)
    ranks = run_ranks(command, 2, tmp_path)
    single = run(training(data, tmp_path / "single", *options, "--update-freq", 2 * update_freq))
    assert_equal_runs((tmp_path / "single", single), (tmp_path / "ranks", ranks), number, MUON_ROUNDING)


def test_two_ranks_resume_what_one_has_begun(toy_data, tmp_path):
    """One rank has read two of the 5 batches of the second epoch, in one update; each of two ranks has read one."""
    data = cut(toy_data, tmp_path / "data", lines=36)
    options = [*NO_DROPOUT, "--batch-size", 8, "--max-epoch", 2, "--ddp-backend", "legacy_ddp"]
    command = training(data, tmp_path / "one", *options, "--update-freq", 2, "--save-interval-updates", 4)
    entries = updates(run(command))
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "checkpoint_2_4.pt", tmp_path / "two" / LAST)
    resumed = updates(run_ranks(training(data, tmp_path / "two", *options), 2, tmp_path))
    last = [[entry["loss"] for entry in each if entry["split"] == "train_inner"] for each in (entries, resumed)]
    assert last[1] == pytest.approx(last[0][-2:], rel=1e-3)
    assert_equal_weights(tmp_path / "one", tmp_path / "two")
