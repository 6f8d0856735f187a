"""What ``maelm pretrain`` and ``maelm finetune`` do with a folder that holds a run already."""

import argparse
import contextlib
import fcntl
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.small import LAST, contents, results, start, wait_until
from end_to_end.toy import run

import fairseq_maelm
from fairseq_maelm import cli
from fairseq_maelm.launch.pretraining import parse_change
from fairseq_maelm.launch.save_folder import LOCK_FILE
from fairseq_maelm.launch.training import _refuse_another_run, after_interrupt


def pretrain(data: Path, folder: Path, *more: Any, lr: float = 1e-3, updates: int = 3, check: bool = True) -> str:
    """Pretrain for a few updates by the recipe tiny."""
    sizes = ["--set", "batch-sequences=4", "sequence-length=64", "sequences-per-gpu=4", f"lr={lr}"]
    words = ["maelm", "pretrain", data, "--output", folder, "--recipe", "tiny", "--gpus", 0, *more, *sizes]
    return run([*words, f"max-update={updates}", "--", "--disable-validation"], check=check)


def test_a_used_folder_is_continued_refused_or_renamed(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    # By the function for notebooks, whose run the command then finds complete.
    changes = {"batch-sequences": 4, "sequence-length": 64, "sequences-per-gpu": 4, "lr": 1e-3, "max-update": 3}
    more = {"disable_validation": True}
    made = fairseq_maelm.pretrain(toy_data, folder, recipe="tiny", gpus=0, set=changes, fairseq_options=more)
    assert made == folder
    assert f"pretraining maelm_tiny on {toy_data}: 3 updates on the CPU" in capsys.readouterr().out
    before = contents(folder)
    assert "this run is complete after 3 updates (--max-update 3), so nothing is changed" in pretrain(toy_data, folder)
    # The schedule depends on the limit, which has the command's name.
    refused = pretrain(toy_data, folder, lr=2e-3, updates=5, check=False).splitlines()[-1]
    assert refused.startswith(f"maelm pretrain: error: {folder} holds a run with other settings (")
    assert "lr 0.001 (now 0.002)" in refused and "--set max-update 3 (now 5)" in refused
    assert "or give --replace to start over, which renames this folder" in refused and contents(folder) == before
    pretrain(toy_data, folder, "--replace", lr=2e-3)
    assert results(folder / LAST)["updates"] == 3
    assert results(tmp_path / "run.old-1" / LAST)["updates"] == 3


def test_a_function_gives_the_options_of_its_command_and_raises_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    lines = ["#!/bin/sh", "shift 3", 'echo "$@"', "[ $STATUS = 0 ] || echo maelm finetune: error: so", "exit $STATUS"]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    for status, error in ((0, None), (1, RuntimeError), (2, ValueError)):
        monkeypatch.setenv("STATUS", str(status))
        with pytest.raises(error, match="^so$") if error else contextlib.nullcontext():
            fairseq_maelm.finetune(
                "task", "a.pt", "run", fairseq_options={"num-workers": 3, "adam_eps": 1e-7}, replace=False, lr=1e-4
            )
        words = "finetune task --checkpoint a.pt --output run --lr 0.0001 -- --num-workers 3 --adam-eps 1e-07"
        assert capsys.readouterr().out.splitlines()[0] == words


def test_a_notebook_that_is_killed_ends_its_training(toy_data: Path, tmp_path: Path) -> None:
    settings = {"recipe": "tiny", "gpus": 0, "set": {"batch-sequences": 4, "sequences-per-gpu": 4, "max-update": 10**6}}
    program = (
        f"import fairseq_maelm; fairseq_maelm.pretrain({str(toy_data)!r}, {str(tmp_path / 'run')!r}, **{settings})"
    )
    notebook = start([sys.executable, "-c", program], tmp_path / "log")
    lock = tmp_path / "run" / LOCK_FILE
    wait_until(lambda: lock.exists() and lock.stat().st_size > 0, notebook, tmp_path / "log")
    notebook.kill()
    notebook.wait()
    # The operating system frees a lock when its process ends.
    with open(lock, "r+b") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX)


def test_a_checkpoint_with_a_flat_list_of_options_is_refused_with_the_reason(tmp_path: Path) -> None:
    options = argparse.Namespace(task="maelm", arch="maelm_tiny", update_freq=[1])
    torch.save({"args": options, "cfg": None, "model": {"weight": torch.zeros(1)}}, tmp_path / LAST)
    with pytest.raises(ValueError, match="whose settings cannot be compared .* an old fairseq wrote it: name"):
        _refuse_another_run(tmp_path, None, {})


def test_after_ctrl_c_it_is_said_what_the_same_command_does(tmp_path: Path) -> None:
    args = argparse.Namespace(output=tmp_path, replace=False)
    assert after_interrupt(args) == "no checkpoint has been saved, so the same command starts again"
    (tmp_path / LAST).touch()
    assert after_interrupt(args) == f"the same command resumes from the last checkpoint in {tmp_path}"
    args.replace = True
    assert after_interrupt(args).startswith("the same command without --replace resumes from")


def test_the_folder_of_shards_is_answered_with_the_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("shard00", "shard01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dict.txt").touch()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["pretrain", str(tmp_path), "--output", str(tmp_path / "new"), "--recipe", "tiny"])
    assert f"is a folder of shards: give {tmp_path}/shard00:{tmp_path}/shard01 as DATA" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("True", True), ("false", False), ("None", None), ("1e-3", 1e-3)])
def test_words_of_python_and_of_yaml_are_values(text: str, value: Any) -> None:
    assert parse_change(f"mask_whole_words={text}") == ("mask-whole-words", value)
