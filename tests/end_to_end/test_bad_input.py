"""Shards, checkpoints and commands that do not fit; what else is bad is in tests/robustness."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from end_to_end.small import cut, training
from end_to_end.toy import TINY_TRAINING, USER_DIR, run
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig

Damage = Callable[[Path], Any]


def without(*names: str) -> Damage:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def edit_dictionary(change: Callable[[list[str]], list[str]], *gone: str) -> Damage:
    """Change the lines of dict.txt, and remove files that would show it in another way."""

    def edit(folder: Path) -> None:
        path = folder / "dict.txt"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(change(lines)), encoding="utf-8")
        without(*gone)(folder)

    return edit


def swapped(lines: list[str]) -> list[str]:
    return [lines[1], lines[0], *lines[2:]]


def intact(folder: Path) -> None:
    assert (folder / "train.bin").exists()


SHA, MODEL = "manifest.json", "sentencepiece.bpe.model"


@pytest.fixture(scope="module")
def good_data(toy_data, tmp_path_factory) -> Path:
    """Few lines of the toy corpus, with the manifest."""
    folder = cut(toy_data, tmp_path_factory.mktemp("good") / "data", lines=16)
    shutil.copy(toy_data / SHA, folder)
    return folder


def damaged(good_data: Path, folder: Path, damage: Damage) -> Path:
    data = shutil.copytree(good_data, folder / "data")
    damage(data)
    return data


def start(data: Path, *arguments: Any) -> torch.nn.Module:
    """What fairseq-train does before the first update, in this process; returns the model."""
    words = [str(word) for word in [data, *TINY_TRAINING, *arguments]]
    parsed = options.parse_args_and_arch(options.get_training_parser(), words)
    config = convert_namespace_to_omegaconf(parsed)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    task.build_criterion(config.criterion)
    task.load_dataset("train", epoch=1)
    return model


@pytest.mark.parametrize("model", ["maelm_huge", OmegaConf.create({"_name": "maelm_huge"})])
def test_unknown_size_in_yaml(good_data, model):
    """fairseq-hydra-train has no list of choices; fairseq itself would stop with a KeyError about '_name'."""
    config = OmegaConf.structured(MaelmTaskConfig(data=str(good_data)))
    config.seed = 1
    with pytest.raises(ValueError, match="no model or size 'maelm_huge'; choose one of .*maelm_base"):
        MaelmTask.setup_task(config).build_model(model)


# Shards


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_dictionary(swapped), r"shard01/dict.txt differs from \S*shard00/dict.txt"),
        (shutil.rmtree, r"there is no folder \S*shard01"),
        (without("train.bin"), r"there is no train.bin with train.idx in \S*shard01"),
    ],
)
def test_a_bad_second_shard_is_refused_before_the_first_is_trained(good_data, tmp_path, damage, message):
    shards = [shutil.copytree(good_data, tmp_path / name) for name in ("shard00", "shard01")]
    damage(shards[1])
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start(Path(":".join(map(str, shards))))


# Commands that do not fit


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ([], r"fairseq's LanguageModelingTask does not work with this model: .*fairseq-validate --task maelm"),
        (
            ["--task", "maelm"],
            r"fairseq-eval-lm evaluates models that predict the next .*fairseq-validate --task maelm",
        ),
    ],
)
def test_the_command_for_the_next_token_names_the_right_one(good_data, tmp_path, task, message):
    run(training(good_data, tmp_path, "--max-update", 1))
    command = ["fairseq-eval-lm", good_data, "--path", tmp_path / "checkpoint_last.pt", "--gen-subset", "train"]
    output = run([*command, "--user-dir", USER_DIR, "--batch-size", 8, "--cpu", *task], check=False)
    assert re.search(rf"^ValueError: {message}", output.splitlines()[-1]), output[-3000:]


# Checkpoints that do not fit


@pytest.fixture(scope="module")
def checkpoint(good_data) -> dict[str, torch.Tensor]:
    """The weights of a model that was built for ``good_data``."""
    return start(good_data).state_dict()


def longer(lines: list[str]) -> list[str]:
    return [*lines, "more 1\n"]


CHECKPOINTS: dict[str, tuple[Damage, list[Any], str]] = {
    "width": (
        intact,
        ["--encoder-embed-dim", 64],
        r"the checkpoint and the model have different sizes \(\d+ differences",
    ),
    "encoder layers": (intact, ["--encoder-layers", 3], r"different sizes .*encoder.layers.2\S* is missing"),
    "decoder layers": (intact, ["--decoder-layers", 2], r"different sizes .*decoder.layers.1\S* is missing"),
    "positions": (intact, ["--max-positions", 128], r"different sizes .*embed_positions"),
    "heads": (intact, ["--encoder-attention-heads", 4], r"--encoder-attention-heads 2 and not 4"),
    "bucket function": (intact, ["--relative-buckets", "reference"], r"--relative-buckets t5 and not reference"),
    "no relative bias": (intact, ["--relative-buckets", "none"], r"--relative-buckets t5 and not none"),
    "distance": (intact, ["--relative-max-distance", 64], r"--relative-max-distance 128 and not 64"),
    "epsilon": (intact, ["--layer-norm-eps", "1e-12"], r"--layer-norm-eps 1e-05 and not 1e-12"),
    "larger vocabulary": (
        edit_dictionary(longer, SHA, MODEL),
        [],
        r"the checkpoint's vocabulary has \d+ symbols and the data's has \d+",
    ),
    "vocabulary of the same size": (edit_dictionary(swapped, SHA, MODEL), [], r"another vocabulary of the same size"),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_that_does_not_fit_is_refused(good_data, checkpoint, tmp_path, case):
    damage, arguments, message = CHECKPOINTS[case]
    model = start(damaged(good_data, tmp_path, damage), *arguments)
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(dict(checkpoint), strict=True)


def test_a_fine_tuned_checkpoint_does_not_continue_pretraining(good_data, checkpoint):
    fine_tuned = {name: tensor for name, tensor in checkpoint.items() if name.startswith("encoder.")}
    with pytest.raises(ValueError, match="it was fine-tuned: continue pretraining from a pretrained checkpoint"):
        start(good_data).load_state_dict(fine_tuned, strict=True)


def test_a_checkpoint_of_another_model_is_named(good_data):
    foreign = {"lm_head.bias": torch.zeros(3), "encoder.sentence_encoder.weight": torch.zeros(3)}
    with pytest.raises(ValueError, match="not a checkpoint of the model maelm"):
        start(good_data).load_state_dict(foreign, strict=True)


@pytest.fixture(scope="module")
def trained(good_data, tmp_path_factory) -> Path:
    """The checkpoint of a run on ``good_data``."""
    folder = tmp_path_factory.mktemp("trained")
    run(training(good_data, folder, "--max-update", 1))
    return folder / "checkpoint_last.pt"
