"""Fine-tuning commands: their options from recipe, checkpoint and data."""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf
from support import logging_kept

from fairseq_maelm import cli
from fairseq_maelm.checkpoints import reader
from fairseq_maelm.commands import finetune
from fairseq_maelm.commands.finetune import default_recipe
from fairseq_maelm.data.batches import BatchDataset
from fairseq_maelm.launch import command_line, finetuning
from fairseq_maelm.launch.command_line import configuration_of
from fairseq_maelm.launch.finetuning import (
    Counted,
    Encoder,
    count_updates,
    rate_for_width,
    run_command,
    run_options,
    train_words,
)
from fairseq_maelm.launch.machine import Machine
from fairseq_maelm.launch.recipes import FineTuningRecipe, read_recipe
from fairseq_maelm.options import UsageError


def encoder(positions: int = 512) -> Encoder:
    """An encoder of which only the positions matter."""
    return Encoder({"arch": "maelm_tiny", "max-positions": positions}, {"init-std": 0.02}, vocabulary=5)


def options(name: str, positions: int = 512, **setting: Any) -> dict[str, Any]:
    """Options of a run of 10 updates per epoch."""
    recipe = read_recipe(Path(name), FineTuningRecipe)
    return run_options(recipe, encoder(positions), {**recipe.setting, **setting}, 10)


def sentences(folder: Path, *labels: str) -> Path:
    """A folder of sentences with classes, or with numbers if there are no classes."""
    (folder / "input0").mkdir(parents=True)
    (folder / "label").mkdir()
    (folder / "input0" / "train.idx").touch()
    dictionary = Dictionary()
    for label in labels:
        dictionary.add_symbol(label)
    if labels:
        dictionary.save(str(folder / "label" / "dict.txt"))
    return folder


def test_schedule_and_table_4() -> None:
    found = options("sentences", lr=1e-5, epochs=5)
    expected = {
        "lr": 1e-5, "batch-size": 32, "max-epoch": 5, "max-update": 50, "total-num-update": 50, "warmup-updates": 3,
        "optimizer": "fused_adamw", "adam-betas": "(0.9, 0.98)", "adam-eps": "1e-6", "weight-decay": 0.01,
        "clip-norm": 0, "dropout": 0.1, "attention-dropout": 0.1, "lr-scheduler": "polynomial_decay",
        "best-checkpoint-metric": "accuracy", "maximize-best-checkpoint-metric": True, "arch": "maelm",
        "task": "maelm_sentences", "criterion": "maelm_sentences",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert not {"init-std", "epochs", "max-positions"} & found.keys()
    assert options("sentences_regression")["best-checkpoint-metric"] == "pearson"


def test_the_best_checkpoint_has_the_lowest_loss_or_the_highest_metric() -> None:
    recipe = read_recipe(Path("sentences"), FineTuningRecipe)
    for metric, largest in (("mcc", True), ("loss", False)):
        recipe.metric = metric
        found = run_options(recipe, encoder(), recipe.setting, 10)
        assert found["best-checkpoint-metric"] == metric and found["maximize-best-checkpoint-metric"] is largest


def test_narrow_encoders_get_higher_rates() -> None:
    assert [rate_for_width(1.0, width) for width in (1024, 384, 128)] == [1, 4, 36]


def command(monkeypatch: pytest.MonkeyPatch, gpus: int = 1, recipe: Path | None = None, **given: Any) -> str:
    """The command of ``maelm finetune`` for an encoder of width 384, as text; 10 updates make an epoch."""
    narrow = Encoder({"arch": "maelm", "encoder-embed-dim": 384, "max-positions": 512}, {}, vocabulary=5)
    monkeypatch.setattr(finetuning, "read_encoder", lambda checkpoint: narrow)
    monkeypatch.setattr(finetuning, "parsed_command", lambda *unused: OmegaConf.create({"task": None}))
    monkeypatch.setattr(finetuning, "set_options", lambda *unused: None)
    monkeypatch.setattr(finetuning, "count_updates", lambda config, sizes, _: Counted(0, {sizes[0]: 10}))
    names = ("lr", "epochs", "batch_size", "warm_up", "metric", "patience", "class_weights", "pooling")
    args = argparse.Namespace(**{**dict.fromkeys(names), "seed": 1, "fairseq_options": [], "recipe": recipe, **given})
    args.task, args.output, args.checkpoint = Path("task"), Path("run"), Path("base.pt")
    return shlex.join(run_command(args, read_recipe(Path("squad"), FineTuningRecipe), Machine(gpus, "fp32"))[0])


def test_options_of_the_command_replace_the_recipe_s(monkeypatch: pytest.MonkeyPatch) -> None:
    found = command(monkeypatch)
    assert "--lr 0.00012 " in found
    assert "--max-epoch 2 --max-update 20 --total-num-update 20 --warmup-updates 2 --batch-size" in found
    assert "--lr 3e-05 " in command(monkeypatch, recipe=Path("squad"))
    found = command(monkeypatch, 4, lr=1.0, epochs=3, patience=3)
    assert "--lr 1.0 --finetune-from-model base.pt --seed 1 --patience 3" in found
    assert "--max-epoch 3 --max-update 30" in found and found.endswith("--batch-size 4")
    with pytest.raises(UsageError, match="--batch-size 6 must be a multiple of --gpus 4"):
        command(monkeypatch, 4, batch_size=6)


@pytest.mark.parametrize("more", [[], ["--update-freq", "2", "--validate-interval", "1", "--batch-size-valid", "3"]])
def test_a_command_is_parsed_once_and_its_checkpoint_is_read_once(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (f"The sailor sails {number}.\tsea\nThe cook cooks {number}.\tland\n" for number in range(20))
    (tmp_path / "table.tsv").write_text("".join(rows))
    table, task, name = str(tmp_path / "table.tsv"), str(tmp_path / "task"), "maelm-english-14m-uncased"
    calls = dict[str, mock.Mock]()
    for module, called in ((command_line, "parse_training"), (reader, "read_checkpoint")):
        counted = mock.Mock(side_effect=getattr(module, called))
        monkeypatch.setattr(module, called, counted)
        calls[called] = counted
    monkeypatch.setattr(reader, "_described", {})
    started: list[Any] = []
    monkeypatch.setattr(finetune, "start_training", lambda *args: started.extend(args))
    with logging_kept():
        cli.main(["prepare", "sentences", "--train", table, "--valid", table, "--vocabulary", name, "--output", task])
        words = ["--checkpoint", name, "--output", str(tmp_path / "run"), "--gpus", "0", "--dry-run"]
        cli.main(["finetune", task, *words, *(["--", *more] if more else [])])
    # To see what the user's own options change, the command is parsed without them, too.
    assert calls["parse_training"].call_count == (2 if more else 1) and calls["read_checkpoint"].call_count == 1
    words, found = started[:2]
    expected = configuration_of(words[1:])
    assert found.keys() == expected.keys() and found.optimization.max_update > 0 and found.task.mix_start
    sections = (OmegaConf.to_container(each, resolve=True, enum_to_str=True) for each in (found, expected))
    assert next(sections) == next(sections)


def test_sizes_are_named_where_they_are_not_taken_over() -> None:
    recipe = read_recipe(Path("RTE"), FineTuningRecipe)
    found = run_options(recipe, encoder(), recipe.setting, 10, {**encoder().options, **encoder().drawn})
    assert (found["arch"], found["max-positions"], found["init-std"]) == ("maelm_tiny", 512, 0.02)


@pytest.mark.parametrize(
    ("name", "positions", "expected"),
    [
        ("RTE", 128, {"tokens-per-sample": 128}),
        ("tagging", 96, {"tokens-per-sample": 96, "window-overlap": 24}),
        ("squad2", 128, {"max-length": 128, "doc-stride": 32, "max-question-length": 32}),
    ],
)
def test_lengths_fit_the_encoder(name: str, positions: int, expected: dict[str, int]) -> None:
    found = options(name, positions)
    assert {option: found[option] for option in expected} == expected


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(0, "bf16"), "--distributed-world-size 1 --cpu --num-workers 0 --precision bf16"),
        (
            Machine(4, "fp16"),
            "--distributed-world-size 4 --num-workers 2 --fp16 --fp16-init-scale 4 --fp16-scale-window 128",
        ),
    ],
)
def test_the_machine(machine: Machine, expected: str) -> None:
    words = train_words({"lr": 1e-3, "no-save": False}, Path("task"), Path("run"), machine)
    assert shlex.join(words).endswith(f" --save-dir run --log-format json --no-epoch-checkpoints --lr 0.001 {expected}")
    assert words[:2] == ["fairseq-train", "task"] and "--no-save" not in words


@pytest.mark.parametrize(("longest", "told"), [(9, []), (8, ["1 of 3 training examples are longer than 8 tokens"])])
def test_updates_of_an_epoch_and_a_warning_about_long_examples(
    longest: int, told: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {
        "dataset": {"train_subset": "train", "max_tokens": None, "required_batch_size_multiple": 1},
        "common": {"seed": 1},
    }
    ranks = {"distributed_training": {"distributed_world_size": 1}, "checkpoint": {"finetune_from_model": None}}
    config = OmegaConf.create({"task": {"data": "."}, "optimization": {"update_freq": [2]}, **parts, **ranks})
    task = FairseqTask(config.task)
    # As in SQuAD, training does not use one of them.
    task.datasets["train"] = BatchDataset(np.array([3, 4, 9, 5]), "shortest", used=np.array([0, 1, 2]))
    task.load_dataset, task.max_positions = lambda *unused, **unused_too: None, lambda: longest
    monkeypatch.setattr(finetuning.tasks, "setup_task", lambda cfg: task)
    counted = count_updates(config, [1, 2, 3], encoder(longest))
    assert counted == ((3, {1: 2, 2: 1, 3: 1}) if longest == 9 else (2, {1: 1, 2: 1, 3: 1}))
    own = [record.getMessage() for record in caplog.records if record.name == finetuning.__name__]
    assert [message.partition(" and will")[0] for message in own] == told
    # Two GPUs, with updates of 12 tokens at most on each: 3 + 4 | 5 + 6, then 9 alone.
    config.optimization.update_freq, config.dataset.max_tokens = [1], 12
    config.distributed_training.distributed_world_size = 2
    task.datasets["train"] = BatchDataset(np.array([3, 4, 9, 5, 6]), "shortest")
    assert count_updates(config, [8], encoder(longest)).updates_per_epoch == {8: 2 if longest == 9 else 1}


def test_the_recipe_is_that_of_the_data(tmp_path: Path) -> None:
    assert default_recipe(sentences(tmp_path / "classes", "a", "b")) == "sentences"
    assert default_recipe(sentences(tmp_path / "numbers")) == "sentences_regression"
    glue = sentences(tmp_path / "glue", "a", "b")
    (glue / "manifest.json").write_text('{"task": "RTE"}')
    assert default_recipe(glue) == "RTE"
    for name, content in (
        ("tagging", {"kind": "tagging", "tagging": {"scheme": "plain"}}),
        ("tagging_entities", {"kind": "tagging", "tagging": {"scheme": "iob2"}}),
        ("squad", {"kind": "squad", "splits": {"valid": {"version": "1.1"}}}),
        ("squad2", {"kind": "squad", "splits": {"valid": {"version": "2.0"}}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps(content))
        assert default_recipe(tmp_path / name) == name
    with pytest.raises(FileNotFoundError, match="no is not a task folder: make one with `maelm prepare sentences`"):
        default_recipe(tmp_path / "no")
