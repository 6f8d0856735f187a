"""What decides whether a run is another one, and the files copied into a save folder.

tests/end_to_end/test_changed_inputs.py has whole runs; test_ema.py shows that the copied files are sufficient.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf

from fairseq_maelm.finetuning.sentences.task import SentencesTask
from fairseq_maelm.finetuning.tagging.task import TaggingTask
from fairseq_maelm.launch.last_update import ends_of, has_ended, jump
from fairseq_maelm.launch.run_record import (
    RUN_FILE,
    Record,
    changed_inputs,
    changed_options,
    options_of,
    read_record,
    read_setup_files,
    record_of,
    write_waiting_files,
    write_with_first_checkpoint,
)
from fairseq_maelm.tasks.maelm import MaelmTask

SENTENCES = ("input0/dict.txt", "input1/dict.txt", "label/dict.txt", "index/valid.txt")


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a 1")
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def task_of(kind: type, data: str) -> Any:
    task = kind.__new__(kind)
    task.cfg = SimpleNamespace(data=data)
    return task


@pytest.mark.parametrize(
    ("kind", "files", "kept"),
    [
        (MaelmTask, ("dict.txt", "tokenizer.json", "manifest.json"), ["dict.txt", "tokenizer.json"]),
        (TaggingTask, ("dict.txt", "manifest.json"), ["dict.txt", "manifest.json"]),
        (SentencesTask, SENTENCES, ["input0/dict.txt", "label/dict.txt"]),
        (SentencePredictionTask, SENTENCES, ["input0/dict.txt", "label/dict.txt"]),
    ],
)
def test_files_of_the_tasks(kind: type, files: tuple[str, ...], kept: list[str], tmp_path: Path) -> None:
    data, folder = write(tmp_path / "data", *files), tmp_path / "saved"
    folder.mkdir()
    task = task_of(kind, f"{data}:{tmp_path / 'another shard'}")
    for _ in range(2):  # The second time nothing is missing.
        write_with_first_checkpoint(task, OmegaConf.create(configuration(data=str(data))), folder)
        assert RUN_FILE not in contents(folder)
        write_waiting_files()
        assert sorted(contents(folder)) == sorted([*kept, RUN_FILE])
        (folder / RUN_FILE).unlink()
        assert contents(folder).items() <= contents(data).items()
    assert read_setup_files(task_of(kind, str(folder)), folder) == {}
    (data / kept[0]).write_text("b 1")
    (folder / kept[1]).unlink()
    with pytest.raises(ValueError, match=rf"^{folder / kept[0]} differs from {data / kept[0]}: .*--save-dir"):
        read_setup_files(task, folder)
    assert contents(folder) == {kept[0]: "a 1"}, "nothing is overwritten, and nothing added"


def test_a_task_that_was_prepared_again_is_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "data", tmp_path / "saved"]
    for changed, folder in enumerate(folders):
        folder.mkdir()
        manifest = {"files": {"train": [{"changed_ns": changed}]}, "tagging": {"labels": ["a"]}, "outputs": {}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert read_setup_files(task_of(TaggingTask, str(folders[0])), folders[1]) == {}


def test_a_run_is_read_from_its_record_or_as_of_version_0_3_from_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "data", "dict.txt")
    begun = OmegaConf.create(configuration(data=str(tmp_path / "data")))
    write_with_first_checkpoint(SimpleNamespace(), begun, tmp_path)
    write_waiting_files()
    assert read_record(tmp_path) is None, "there is no checkpoint"
    state = {"cfg": configuration(), "model": {"weight": torch.zeros(1)}, "task_state": {"inputs": {"data": [{}]}}}
    torch.save(state, tmp_path / "checkpoint_last.pt")
    found = read_record(tmp_path)
    assert found == record_of(begun) and list(found.inputs["data"][0]) == ["dict.txt"]
    assert changed_inputs(found, begun) == changed_options(found, begun, {}) == ""
    # The task has changed an option since.
    assert found.options["task"]["texts"] is None
    (tmp_path / RUN_FILE).unlink()
    assert read_record(tmp_path) == Record(options_of(configuration()), {"data": [{}]})


def test_other_tasks_keep_nothing(tmp_path: Path) -> None:
    write(tmp_path / "data", "dict.txt")
    task = SimpleNamespace(cfg=SimpleNamespace(data=str(tmp_path / "data")))
    assert read_setup_files(task, tmp_path / "new") == {}


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
        "checkpoint": {"finetune_from_model": None},
    }
    return {
        name: {option: changes.get(option, value) for option, value in section.items()}
        for name, section in sections.items()
    }


def changed(before: dict[str, Any], now: dict[str, Any], owned: dict[str, str] | None = None) -> list[str]:
    """Return the described differences between a run and a configuration."""
    said = changed_options(Record(options_of(before), {}), now, owned or {})
    return re.split(r"(?<=\)), ", said) if said else []


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
    assert changed(configuration(), configuration(**changes)) == expected


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
    assert changed(before, now, OWNED) == expected


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
    assert changed(before, now) == expected
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
    assert changed(before, now) == ["decoder-attention self (now shared)"]
    for configured in (before, now):
        configured["model"]["decoder_layers"] = 0
    assert changed(before, now) == []


def test_data_may_move_but_not_change(tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert changed(configuration(data=old), configuration(data=new)) == []
    (tmp_path / "old").mkdir()
    assert changed(configuration(data=old), configuration(data=new)) == [f"data {old} (now {new})"]


def test_general_data_may_be_spelled_differently(tmp_path: Path) -> None:
    before, now = configuration(), configuration()
    before["task"]["general_data"], now["task"]["general_data"] = str(tmp_path), f"{tmp_path}/"
    assert changed(before, now) == []
