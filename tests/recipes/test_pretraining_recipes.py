"""The pretraining recipes: the paper's numbers, the batch on every number of GPUs, and what is stated about them."""

import re
import shlex
import shutil
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import tasks
from support import usage_error

from fairseq_maelm.launch.command_line import parse_training
from fairseq_maelm.launch.machine import Machine
from fairseq_maelm.launch.pretraining import train_options
from fairseq_maelm.launch.recipes import PretrainingRecipe, read_recipe, recipe_names
from recipes.dry_runs import GUIDES, configuration_of_command, recipe_command

# Table 3 of the paper, cell by cell.
_ALL = {
    "Batch Size": 2048, "Warm-Up Steps": 10_000, "Sequence Length": 512, "Adam epsilon": 1e-6,
    "Adam betas": (0.9, 0.98), "Dropout": 0.1, "Weight Decay": 0.01,
}  # fmt: skip
_DIFFERENT = ("Max Steps", "Peak Learning Rate", "Relative Position Encoding Buckets",
              "Relative Position Encoding Max Distance", "Clip Norm")  # fmt: skip
TABLE_3: dict[str, dict[str, Any]] = {
    name: {**_ALL, **dict(zip(_DIFFERENT, values))}
    for name, *values in (
        ("base", 125_000, 5e-4, 32, 128, 2.0),
        ("base_plus_plus", 2_000_000, 2e-4, 64, 128, 2.0),
        ("large_plus_plus", 1_000_000, 1e-4, 128, 256, 1.0),
    )
}
# Symbols of the vocabularies and (layers, width) of encoder and decoder, from the paper's appendix on pretraining.
VOCABULARY = {"base": 32_768, "base_plus_plus": 64_000, "large_plus_plus": 64_000}
SHAPES = {"base": (12, 768, 4), "base_plus_plus": (12, 768, 4), "large_plus_plus": (24, 1024, 4)}

MLM = ["--masked-input", "kept", "--decoder-layers", "0"]


# fairseq uses Hydra as it was two versions ago.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a dictionary of 32,768 symbols: all that is needed to build a model."""
    return folder_with_dictionary(tmp_path_factory.mktemp("data"), 32_768)


def folder_with_dictionary(folder: Path, symbols: int) -> Path:
    """Write a dict.txt that with fairseq's four symbols and <mask> has this many."""
    (folder / "dict.txt").write_text("".join(f"piece{number} 1\n" for number in range(symbols - 5)))
    return folder


def model_on_paper(configuration: Any) -> torch.nn.Module:
    """Build the model of a configuration without memory for its weights."""
    task = tasks.setup_task(configuration.task)
    with torch.device("meta"):
        return task.build_model(configuration.model)


@pytest.mark.parametrize("name", TABLE_3)
def test_recipe_has_the_numbers_of_table_3(name: str, tmp_path: Path) -> None:
    folder_with_dictionary(tmp_path, VOCABULARY[name])
    words = recipe_command(name, tmp_path, "--gpus", 8)
    configuration = configuration_of_command(words)
    model = model_on_paper(configuration)
    optimization, optimizer = configuration.optimization, configuration.optimizer
    assert {
        "Max Steps": optimization.max_update,
        "Peak Learning Rate": optimization.lr[0],
        "Batch Size": sequences_in_a_batch(configuration),
        "Warm-Up Steps": configuration.lr_scheduler.warmup_updates,
        "Sequence Length": configuration.task.tokens_per_sample,
        "Relative Position Encoding Buckets": model.config.relative_num_buckets,
        "Relative Position Encoding Max Distance": model.config.relative_max_distance,
        "Adam epsilon": optimizer.adam_eps,
        "Adam betas": tuple(float(number) for number in str(optimizer.adam_betas).strip("()").split(",")),
        "Clip Norm": optimization.clip_norm,
        "Dropout": model.config.dropout,
        "Weight Decay": optimizer.weight_decay,
    } == TABLE_3[name]
    # What the paper says outside of the table.
    assert (optimizer._name, configuration.lr_scheduler._name) == ("fused_adamw", "polynomial_decay")
    assert configuration.lr_scheduler.total_num_update == optimization.max_update
    assert configuration.lr_scheduler.end_learning_rate == 0.0
    assert model.config.attention_dropout == 0.1
    task = configuration.task
    assert (task.mask_prob, task.leave_unmasked_prob, task.random_token_prob) == (0.15, 0.0, 0.0)
    assert (len(model.encoder.layers), model.config.encoder_embed_dim, len(model.decoder.layers)) == SHAPES[name]
    assert model.encoder.embed_tokens.num_embeddings == VOCABULARY[name]


def differences(left: list[str], right: list[str]) -> dict[str, tuple[Any, Any]]:
    """Compare the options of two commands, those that the architecture sets included."""
    one, other = (vars(parse_training(words[1:])) for words in (left, right))
    return {name: (one.get(name), other.get(name)) for name in {**one, **other} if one.get(name) != other.get(name)}


def test_baseline_differs_in_the_method_alone(data: Path) -> None:
    commands = [recipe_command("base", data, "--gpus", 8, *more) for more in ([], ["--", *MLM])]
    assert differences(*commands) == {"masked_input": ("dropped", "kept"), "decoder_layers": (4, 0)}


def test_precision_is_an_option(data: Path) -> None:
    words = ["base", data, "--gpus", 8, "--set", "sequences-per-gpu=32", "--precision"]
    single, half, fp16 = (recipe_command(*words, precision) for precision in ("fp32", "bf16", "fp16"))
    assert differences(single, half) == {"precision": (None, "bf16")}
    # The loss scale of the authors' script.
    found = {name: value for name, (_, value) in differences(single, fp16).items()}
    assert found == {"fp16": True, "fp16_init_scale": 4, "fp16_scale_window": 256}


def sequences_in_a_batch(configuration: Any) -> int:
    """Count the full-length sequences of one update over all GPUs."""
    per_gpu, rest = divmod(configuration.dataset.max_tokens, configuration.task.tokens_per_sample)
    assert rest == 0
    gpus = configuration.distributed_training.distributed_world_size
    return int(per_gpu * gpus * configuration.optimization.update_freq[0])


@pytest.mark.parametrize("name", ["base", "modern_17m"])
def test_muon_gets_matrices_in_fp16_too(name: str, data: Path) -> None:
    """fp16 is the default on GPUs, and fairseq would pass the optimizer all weights in one vector."""
    words = recipe_command(name, data, "--gpus", 1)
    assert "--fp16" in words and ("--fp16-no-flatten-grads" in words) == (name == "modern_17m")
    assert option(words, "--optimizer") == ("muon" if name == "modern_17m" else "fused_adamw")
    words = recipe_command(name, data, "--gpus", 1, "--precision", "bf16")
    assert "--fp16" not in words and "--fp16-no-flatten-grads" not in words


@pytest.mark.parametrize("name", TABLE_3)
def test_batch_is_the_paper_s_on_every_number_of_gpus(name: str) -> None:
    # The table that the user reads before.
    recipe = header(name)
    table = zip(*([int(n) for n in re.findall(r"\d+", recipe.split(key)[1].splitlines()[0])] for key in KEYS))
    for gpus, sequences, updates in table:
        found = train_options(read_recipe(Path(name), PretrainingRecipe), Machine(gpus, "fp16"))
        assert (found["max-tokens"], found["update-freq"]) == (sequences * 512, updates)
        assert gpus * sequences * updates == 2048


@pytest.mark.parametrize(
    ("name", "gpus", "batch"), [("adapt", 2, 32), ("adapt", 16, 32), ("base", 0, 8), ("base", 2, 8)]
)
def test_small_batches_are_divided_too(name: str, gpus: int, batch: int) -> None:
    recipe = read_recipe(Path(name), PretrainingRecipe)
    recipe.setting["batch-sequences"] = batch
    recipe.options |= {"arch": "maelm_tiny", "max-update": 1}
    found = train_options(recipe, Machine(gpus, "fp32"))
    assert max(1, gpus) * found["update-freq"] * found["max-tokens"] == batch * recipe.setting["sequence-length"]


KEYS = ("GPUS  ", "sequences-per-gpu  ", "--update-freq")


def option(words: list[str], name: str) -> str:
    """Return the value of an option that stands once in a command."""
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def header(name: str) -> str:
    """Return the comment that a recipe begins with."""
    lines = (PretrainingRecipe.folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))])


def guide_rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of a page's tables."""
    lines = (GUIDES / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_readme_shows_the_command(data: Path) -> None:
    """The page of the pretraining shows what `maelm pretrain` runs, word for word."""
    text = (GUIDES / "pretraining.md").read_text(encoding="utf-8")
    shown = text.split("--dry-run\n")[1].split("\n\n")[0].replace("\\\n", " ")
    words = recipe_command("base", data, "--gpus", 8)
    words[words.index("--user-dir") + 1] = "$(maelm user-dir)"
    words[1], words[words.index("--save-dir") + 1] = "data", "base"
    assert shlex.split(shown.replace("$(maelm user-dir)", "'$(maelm user-dir)'")) == words


def test_options_and_settings_of_the_user_win(data: Path) -> None:
    own = ["--gpus", 2, "--set", "max-update=50", "sequences-per-gpu=4", "batch-sequences=16"]
    words = recipe_command("tiny", data, *own, "--arch", "maelm_small", "--", "--lr", "3e-4", "--seed", "7")
    configuration = configuration_of_command(words)
    assert list(configuration.optimization.lr) == list(configuration.lr_scheduler.lr) == [3e-4]
    assert configuration.common.seed == 7
    assert configuration.optimization.max_update == configuration.lr_scheduler.total_num_update == 50
    assert (configuration.dataset.max_tokens, configuration.optimization.update_freq) == (4 * 128, [2])
    assert option(words, "--arch") == "maelm_small"
    # Names with underscores, options without a value, and options that are left out.
    words = recipe_command("tiny", data, "--set", "sequence_length=64", "mask_whole_words=true", "warmup-updates=none")
    assert option(words, "--tokens-per-sample") == "64" and "--mask-whole-words" in words
    assert "--warmup-updates" not in words


def test_workers_read_batches_for_gpus_alone(data: Path) -> None:
    """On a CPU they would take time from the training, and fairseq starts them again for each validation."""
    assert [option(recipe_command("tiny", data, "--gpus", gpus), "--num-workers") for gpus in (0, 1)] == ["0", "2"]


def test_a_recipe_may_leave_room_for_longer_sequences() -> None:
    recipe = read_recipe(Path("tiny"), PretrainingRecipe)
    machine = Machine(0, "fp32")
    assert train_options(recipe, machine)["max-positions"] == recipe.setting["sequence-length"] == 128
    recipe.options["max-positions"] = 512
    assert train_options(recipe, machine)["max-positions"] == 512


def test_the_recipe_of_an_architecture_has_its_name(data: Path) -> None:
    for name in ("base_plus_plus", "modern_150m"):
        own = recipe_command(name, data, "--gpus", 0)
        assert recipe_command(name, data, "--gpus", 0, "--arch", f"maelm_{name}") == own
    assert set(recipe_names(PretrainingRecipe)) == {
        *TABLE_3,
        "adapt",
        "modern_150m",
        "modern_17m",
        "modern_32m",
        "tiny",
    }


@pytest.mark.parametrize(("cards", "smallest"), [([80e9] + [141e9] * 7, 80), ([141e9] * 8, 141), ([], 40)])
def test_sequences_per_gpu_follow_the_smallest_gpu(
    cards: list[float], smallest: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's table says the same; --gpus counts what torch sees, which minds CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: types.SimpleNamespace(total_memory=cards[gpu]))
    rows = {row[0].strip("`"): row for row in guide_rows("performance.md") if row[0].startswith("`")}
    column = {40: 3, 80: 4, 141: 5}[smallest]
    words = recipe_command("base", data, *([] if cards else ["--gpus", 8]))
    assert option(words, "--distributed-world-size") == "8"
    assert int(rows["base"][column]) * 512 == int(option(words, "--max-tokens"))
    for name in ("base", "base_plus_plus", "large_plus_plus", "modern_32m"):
        recipe = read_recipe(Path(name), PretrainingRecipe)
        fixed, each = recipe.setting["memory-gb"]
        assert rows[name][1] == f"{fixed} + {each} n"
        assert int(rows[name][column]) * 512 == train_options(recipe, Machine(8, "fp16"), smallest * 1e9)["max-tokens"]


def test_more_gpus_than_torch_sees_are_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: types.SimpleNamespace(total_memory=80e9))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    words = ["pretrain", data, "--output", data / "run", "--recipe", "base", "--gpus", 8]
    assert "--gpus 8, but torch finds 2 here with CUDA_VISIBLE_DEVICES=3,5" in usage_error(capsys, words)


@pytest.mark.parametrize(
    "variables",
    [
        {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "0"},
        {"SLURM_JOB_NODELIST": "node[0-3]", "SLURM_NNODES": "4", "SLURM_NTASKS": "4"},
    ],
    ids=["torchrun", "slurm"],
)
def test_the_number_of_gpus_is_that_of_the_launcher(
    variables: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq uses torchrun's processes, or here two GPUs on each of SLURM's four nodes, whatever its option says."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: types.SimpleNamespace(total_memory=80e9))
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ["pretrain", data, "--output", data / "run", "--recipe", "base", "--gpus", 2]
    assert "--gpus 2, but fairseq would use 8" in usage_error(capsys, words)
    for words in [[], ["--gpus", 8]]:
        assert option(recipe_command("base", data, *words), "--distributed-world-size") == "8"


def test_processes_of_torchrun_that_would_each_train_alone_are_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: types.SimpleNamespace(total_memory=80e9))
    for name, value in {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    words = ["pretrain", data, "--output", data / "run", "--recipe", "base"]
    for visible, given, told in (
        (0, [], "8 processes, but a run on a CPU has one: omit torchrun"),
        (0, ["--gpus", 8], "8 processes, but a run on a CPU has one: omit torchrun"),
        (8, ["--gpus", 0], "a run on a CPU has one: omit torchrun, or give --gpus 8"),
        (8, ["--gpus", 1], "a run on one GPU has one: omit torchrun, or give --gpus 8"),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda visible=visible: visible)
        assert told in usage_error(capsys, [*words, *given])
    # torchrun with one process, on a machine without a GPU.
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "--cpu" in recipe_command("base", data)


def test_gpus_exchange_by_nccl_and_look_for_no_unused_parameters(data: Path) -> None:
    """What needs NCCL can at least be configured."""
    reached = configuration_of_command(recipe_command("base", data, "--gpus", 8)).distributed_training
    assert (reached.distributed_backend, reached.ddp_backend) == ("nccl", "pytorch_ddp")
    assert not reached.find_unused_parameters and not reached.broadcast_buffers


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--", "--lr", "1", "--lr", "2"], "after --, --lr is given twice, with 1 and 2: give it once"),
        (["--set", "lr=1", "--set", "lr=2"], "--set gives lr twice, as 1 and 2: give it once"),
    ],
)
def test_a_setting_is_given_once(more: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", data, "--output", data / "run", "--recipe", "base", "--gpus", 0, "--dry-run", *more]
    assert message in usage_error(capsys, words)
