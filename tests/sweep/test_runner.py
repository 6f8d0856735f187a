"""The options that choose where programs run, and the messages about failed programs."""

import argparse
from pathlib import Path

import pytest
import torch

from fairseq_maelm.sweep.runner import Runner, add_runner_arguments, runner_of

from .programs import calls, counting, program


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_runner_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "slots", "gpus"),
    [
        ([], [""], 0),
        (["--jobs", "3"], ["", "", ""], 0),
        (["--gpus", "0", "0", "1"], ["0", "0", "1"], 1),
        (["--gpus", "0,1", "2,3"], ["0,1", "2,3"], 2),
        (["--slurm", "cluster=local", "gpus_per_node=1"], [""] * 100, 1),
        (["--jobs", "7", "--slurm", "cluster=local"], [""] * 7, 0),
    ],
)
def test_slots(words: list[str], slots: list[str], gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    found = runner_of(parse(*words), most_gpus=2)
    assert (found.slots, found.gpus, found.launcher is None) == (slots, gpus, "--slurm" not in words)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    if "--gpus" in words:
        with pytest.raises(ValueError, match="--gpus is given, but torch finds no GPU here"):
            runner_of(parse(*words), most_gpus=2)
        assert runner_of(parse(*words, "--dry-run"), most_gpus=2).slots == slots, "for another machine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0", "1,2"], "same number of GPUs"),
        (["--gpus", "0,1"], "a run has at most 1 GPU: write --gpus 0 1"),
        (["--slurm", "cluster=local", "gpus_per_node=2"], "a run has at most 1 GPU"),
        (["--slurm", "partition"], "must be NAME=VALUE"),
    ],
)
def test_contradictions_are_refused(words: list[str], message: str) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(ValueError, match=message):
        runner_of(parse(*words))


def test_what_failed_is_tried_again_when_it_is_asked_for(tmp_path: Path) -> None:
    runner = Runner([""], 0, None, retry_failed=False, dry_run=False)
    bad = program(tmp_path, "bad", f"{counting(tmp_path)}; raise SystemExit('the reason')")
    for number in (1, 1):
        with pytest.raises(ValueError, match=r"1 run has no result \(bad: .*the reason\); --retry-failed runs"):
            runner.do([bad])
        assert calls(tmp_path) == number
    with pytest.raises(ValueError, match="the same command runs it again"):
        runner._replace(retry_failed=True).do([bad])
    assert calls(tmp_path) == 2
