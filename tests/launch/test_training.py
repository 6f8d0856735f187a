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
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import fairseq_maelm
from fairseq_maelm import cli
from fairseq_maelm.launch.last_update import ends_of, has_ended, jump
from fairseq_maelm.launch.pretraining import parse_change
from fairseq_maelm.launch.start import LOCK_FILE
from fairseq_maelm.launch.training import _refuse_another_run, after_interrupt, different_settings


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
    sections = {**configuration(), "checkpoint": {"finetune_from_model": None}}
    torch.save({"args": options, "cfg": None, "model": {"weight": torch.zeros(1)}}, tmp_path / LAST)
    with pytest.raises(
        ValueError,
        match="whose settings cannot be compared with the given ones, perhaps because an old fairseq wrote it: name",
    ):
        _refuse_another_run(tmp_path, OmegaConf.create(sections), {})


def configuration(**changes: Any) -> dict[str, dict[str, Any]]:
    """Return sections of fairseq's configuration; ``changes`` are options, whatever their section."""
    sections: dict[str, dict[str, Any]] = {
        "task": {
            "_name": "maelm",
            "data": "data",
            "mask_prob_end": 0.1,
            "half_length_until": 0.0,
            "texts": 1,
            "given": {"texts": None},
        },
        "model": {"_name": "maelm", "decoder_layers": 2, "attention": "auto"},
        "optimizer": {"_name": "fused_adamw", "lr": [0.001]},
        "optimization": {"lr": [0.001], "update_freq": [4], "max_update": 100},
        "dataset": {"batch_size": None, "max_tokens": 1024},
        "distributed_training": {"distributed_world_size": 1},
    }
    return {
        name: {option: changes.get(option, value) for option, value in section.items()}
        for name, section in sections.items()
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"distributed_world_size": 2, "update_freq": [2]}, []),
        ({"attention": "plain"}, []),
        ({"max_update": 200}, ["max-update 100 (now 200)"]),
        ({"texts": None, "given": {}}, []),
        ({"mask_prob_end": None}, ["mask-prob-end 0.1 (now None)"]),
        ({"decoder_layers": 3}, ["decoder-layers 2 (now 3)"]),
        ({"lr": [5e-4]}, ["lr 0.001 (now 0.0005)"]),
        ({"distributed_world_size": 2}, ["batch of tokens 4096 (now 8192)"]),
    ],
)
def test_what_differs_is_what_decides_the_result(changes: dict[str, Any], expected: list[str]) -> None:
    assert different_settings(configuration(), configuration(**changes), {}) == expected


OWNED = {**dict.fromkeys(("max-epoch", "max-update", "total-num-update"), "--epochs"), "warmup-updates": "--warm-up"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_epoch": 5, "total_num_update": 50, "warmup_updates": 5}, ["--epochs 3 (now 5)"]),
        ({"warmup_updates": 5}, ["--warm-up 3 (now 5)"]),
        # The number of updates follows from the size of the batch.
        ({"batch_size": 8, "total_num_update": 50}, ["batch-size 64 (now 32)"]),
        ({"total_num_update": 50}, ["total-num-update 30 (now 50)"]),
    ],
)
def test_settings_have_the_names_of_the_command_s_options(changes: dict[str, Any], expected: list[str]) -> None:
    before = configuration(batch_size=16)
    before["optimization"]["max_epoch"] = 3
    before["lr_scheduler"] = {**schedule("polynomial_decay"), "total_num_update": 30, "warmup_updates": 3}
    now = {
        name: {option: changes.get(option, value) for option, value in each.items()} for name, each in before.items()
    }
    assert different_settings(before, now, OWNED) == expected


def schedule(name: str, **changes: Any) -> dict[str, Any]:
    """Return fairseq's section of a learning-rate schedule for 100 updates."""
    options = vars(LR_SCHEDULER_DATACLASS_REGISTRY[name]())
    ends = {option: 100 for option, value in options.items() if value == "${optimization.max_update}"}
    return {**options, "_name": name, "lr": [0.001], **ends, **changes}


PHASES = {"phase_ratio": [0.1, 0.4, 0.5]}
LAST_UPDATE = ["max-update 100 (now 200)"]


@pytest.mark.parametrize(
    ("section", "task", "updates", "expected"),
    [
        (schedule("fixed"), {}, 200, []),
        (schedule("fixed"), {"mask_prob_end": 0.1}, 200, LAST_UPDATE),
        (schedule("fixed"), {"half_length_until": 0.6}, 200, LAST_UPDATE),
        (schedule("cosine"), {}, 200, LAST_UPDATE),
        (schedule("cosine", lr_period_updates=100), {}, 200, []),
        (schedule("tri_stage", **PHASES), {}, 200, LAST_UPDATE),
        (schedule("tri_stage", **PHASES), {}, 1, ["max-update 100 (now 1)"]),
        (schedule("cosine", warmup_updates=50), {}, 50, ["max-update 100 (now 50)"]),
        (schedule("tri_stage_linear", warmup_steps=9, decay_steps=9), {}, 200, []),
        (schedule("polynomial_decay"), {}, 200, ["total-num-update 100 (now 200)", *LAST_UPDATE]),
    ],
)
def test_the_last_update_may_change_if_nothing_depends_on_it(
    section: dict[str, Any], task: dict[str, Any], updates: int, expected: list[str]
) -> None:
    before = configuration(**{"mask_prob_end": None, **task})
    now = configuration(**{"mask_prob_end": None, **task, "max_update": updates})
    ends = dict.fromkeys(ends_of({**before, "lr_scheduler": section}).keys() & section.keys(), updates)
    before["lr_scheduler"], now["lr_scheduler"] = section, {**section, **ends}
    assert different_settings(before, now, {}) == expected
    # What the end decides has ended with it, and would jump.
    dependent = bool(expected)
    assert has_ended(before, 100) == dependent and not has_ended(before, 99)
    assert (jump(now, before, 100) is not None) == dependent
    assert jump(before, before, 100) is None


def test_another_decoder_of_the_same_architecture_is_another_setting() -> None:
    """As after an update of the package, with which ``maelm_modern_*`` have a shared decoder."""
    before, now = configuration(), configuration()
    before["model"] |= {"_name": "maelm_modern_17m", "decoder_attention": "self"}
    now["model"] |= {"_name": "maelm_modern_17m", "decoder_attention": None}
    assert different_settings(before, now, {}) == ["decoder-attention self (now shared)"]
    for configured in (before, now):
        configured["model"]["decoder_layers"] = 0
    assert different_settings(before, now, {}) == []


def test_data_may_move_but_not_change(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert different_settings(configuration(data=old), configuration(data=new), {}) == []
    (tmp_path / "old").mkdir()
    assert different_settings(configuration(data=old), configuration(data=new), {}) == [f"data {old} (now {new})"]


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


def test_general_data_may_be_spelled_differently(tmp_path: Path) -> None:
    before, now = configuration(), configuration()
    before["task"]["general_data"], now["task"]["general_data"] = str(tmp_path), f"{tmp_path}/"
    assert different_settings(before, now, {}) == []
