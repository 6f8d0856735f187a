"""The pretraining recipes: the paper's numbers, the batch on every number of GPUs, and YAML that means the same."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import tasks
from omegaconf import OmegaConf

from recipes.doors import (
    PRETRAINING,
    ROOT,
    configuration_of_command,
    configuration_of_yaml,
    recipe_command,
    run_recipe,
)

# Table 3 of the paper, cell by cell.
TABLE_3 = {
    "base": {
        "Max Steps": 125_000,
        "Peak Learning Rate": 5e-4,
        "Batch Size": 2048,
        "Warm-Up Steps": 10_000,
        "Sequence Length": 512,
        "Relative Position Encoding Buckets": 32,
        "Relative Position Encoding Max Distance": 128,
        "Adam epsilon": 1e-6,
        "Adam betas": (0.9, 0.98),
        "Clip Norm": 2.0,
        "Dropout": 0.1,
        "Weight Decay": 0.01,
    },
    "base_plus_plus": {
        "Max Steps": 2_000_000,
        "Peak Learning Rate": 2e-4,
        "Batch Size": 2048,
        "Warm-Up Steps": 10_000,
        "Sequence Length": 512,
        "Relative Position Encoding Buckets": 64,
        "Relative Position Encoding Max Distance": 128,
        "Adam epsilon": 1e-6,
        "Adam betas": (0.9, 0.98),
        "Clip Norm": 2.0,
        "Dropout": 0.1,
        "Weight Decay": 0.01,
    },
    "large_plus_plus": {
        "Max Steps": 1_000_000,
        "Peak Learning Rate": 1e-4,
        "Batch Size": 2048,
        "Warm-Up Steps": 10_000,
        "Sequence Length": 512,
        "Relative Position Encoding Buckets": 128,
        "Relative Position Encoding Max Distance": 256,
        "Adam epsilon": 1e-6,
        "Adam betas": (0.9, 0.98),
        "Clip Norm": 1.0,
        "Dropout": 0.1,
        "Weight Decay": 0.01,
    },
}
# Symbols of the vocabularies and (layers, width) of encoder and decoder, from the paper's appendix on pretraining.
VOCABULARY = {"base": 32_768, "base_plus_plus": 64_000, "large_plus_plus": 64_000}
SHAPES = {"base": (12, 768, 4), "base_plus_plus": (12, 768, 4), "large_plus_plus": (24, 1024, 4)}

RECIPES = ["base", "base_plus_plus", "large_plus_plus", "small", "small_cpu", "tiny"]
# The number of GPUs that each YAML file is written for.
GPUS_OF_YAML = {"base": 8, "base_plus_plus": 8, "large_plus_plus": 8, "small": 1, "small_cpu": 0, "tiny": 0}


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


def differences(left: Any, right: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Compare two configurations field by field: {path: (left, right)}."""
    if isinstance(left, dict) and isinstance(right, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted(left.keys() | right.keys()):
            found |= differences(left.get(key, "absent"), right.get(key, "absent"), f"{path}.{key}".lstrip("."))
        return found
    return {} if left == right else {path: (left, right)}


def described(configuration: Any) -> dict[str, Any]:
    """Turn a fairseq configuration and the model that it builds into plain dictionaries that can be compared."""
    plain: Any = OmegaConf.to_container(configuration, resolve=True, enum_to_str=True)
    # A criterion without options of its own gets the whole command line from fairseq-train, and reads none of it.
    criterion = plain["criterion"]
    plain["criterion"] = criterion["_name"] if isinstance(criterion, dict) else criterion._name
    # Scores of generated text: fairseq-train names a default, Hydra none, and no training uses it.
    del plain["scoring"]
    model = model_on_paper(configuration)
    plain["model"] = OmegaConf.to_container(model.config, resolve=True, enum_to_str=True)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert len(shapes) > 50
    return {**plain, "parameters": shapes}


@pytest.mark.parametrize("name", TABLE_3)
def test_recipe_has_the_numbers_of_table_3(name: str, tmp_path: Path) -> None:
    folder_with_dictionary(tmp_path, VOCABULARY[name])
    words = recipe_command(name, DATA=tmp_path, SAVE_DIR=tmp_path / "run", GPUS=8)
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
    # What the paper says beside the table.
    assert (optimizer._name, configuration.lr_scheduler._name) == ("fused_adamw", "polynomial_decay")
    assert configuration.lr_scheduler.total_num_update == optimization.max_update
    assert configuration.lr_scheduler.end_learning_rate == 0.0
    assert model.config.attention_dropout == 0.1
    task = configuration.task
    assert (task.mask_prob, task.leave_unmasked_prob, task.random_token_prob) == (0.15, 0.0, 0.0)
    assert (len(model.encoder.layers), model.config.encoder_embed_dim, len(model.decoder.layers)) == SHAPES[name]
    assert model.encoder.embed_tokens.num_embeddings == VOCABULARY[name]


def sequences_in_a_batch(configuration: Any) -> int:
    """Count the full-length sequences of one update over all GPUs."""
    per_gpu, rest = divmod(configuration.dataset.max_tokens, configuration.task.tokens_per_sample)
    assert rest == 0
    gpus = configuration.distributed_training.distributed_world_size
    return int(per_gpu * gpus * configuration.optimization.update_freq[0])


# fairseq-train has no Hydra that took its logging over.
LOGGING = {"common.reset_logging": (False, True)}


@pytest.mark.parametrize("name", RECIPES)
def test_yaml_is_the_recipe(name: str, data: Path, tmp_path: Path) -> None:
    recipe = configuration_of_command(recipe_command(name, DATA=data, SAVE_DIR=tmp_path, GPUS=GPUS_OF_YAML[name]))
    yaml = configuration_of_yaml(name, *places(data, tmp_path))
    assert differences(described(recipe), described(yaml)) == LOGGING


def test_yaml_becomes_the_baseline_as_the_recipe_does(data: Path, tmp_path: Path) -> None:
    words = recipe_command("base", DATA=data, SAVE_DIR=tmp_path, GPUS=16, METHOD="mlm")
    overrides = ["task.masked_input=kept", "+model.decoder_layers=0"]
    overrides += ["distributed_training.distributed_world_size=16", "optimization.update_freq=[4]"]
    yaml = configuration_of_yaml("base", *places(data, tmp_path), *overrides)
    assert differences(described(configuration_of_command(words)), described(yaml)) == LOGGING


def places(data: Path, save_dir: Path) -> list[str]:
    """Return the overrides that every YAML file asks for."""
    return [f"task.data={data}", f"checkpoint.save_dir={save_dir}", f"common.user_dir={ROOT / 'fairseq_maelm'}"]


def test_baseline_differs_in_the_method_alone(data: Path, tmp_path: Path) -> None:
    options = {"DATA": data, "SAVE_DIR": tmp_path, "GPUS": 8}
    maelm = described(configuration_of_command(recipe_command("base", **options)))
    baseline = described(configuration_of_command(recipe_command("base", **options, METHOD="mlm")))
    found = differences(maelm, baseline)
    decoder = {name for name in found if name.startswith("parameters.decoder.")}
    assert len(decoder) > 4 * 12 and all(found[name][1] == "absent" for name in decoder)
    assert {name: found[name] for name in found.keys() - decoder} == {
        "task.masked_input": ("dropped", "kept"),
        "model.decoder_layers": (4, 0),
    }


def test_authors_buckets_are_one_option_more_as_the_recipe_and_the_yaml_say(data: Path, tmp_path: Path) -> None:
    """The recipe takes T5's function, which the paper cites, and says so; the rest is the same."""
    options = {"DATA": data, "SAVE_DIR": tmp_path, "GPUS": 8}
    ours = described(configuration_of_command(recipe_command("base_plus_plus", **options)))
    command = recipe_command("base_plus_plus", "--relative-buckets", "reference", **options)
    theirs = described(configuration_of_command(command))
    assert differences(ours, theirs) == {"model.relative_buckets": ("t5", "reference")}
    yaml = configuration_of_yaml("base_plus_plus", *places(data, tmp_path), "+model.relative_buckets=reference")
    assert differences(theirs, described(yaml)) == LOGGING
    assert "`--relative-buckets reference` is theirs" in header(PRETRAINING / "base_plus_plus.sh")
    assert "+model.relative_buckets=reference" in header(PRETRAINING / "config" / "base_plus_plus.yaml")


def test_bf16_is_an_option_of_the_recipe_and_of_the_yaml(data: Path, tmp_path: Path) -> None:
    options = {"DATA": data, "SAVE_DIR": tmp_path, "GPUS": 8}
    half = described(configuration_of_command(recipe_command("base", **options, PRECISION="bf16")))
    single = described(configuration_of_command(recipe_command("base", **options, PRECISION="fp32")))
    assert differences(single, half) == {"model.precision": ("fp32", "bf16")}
    assert half["common"]["fp16"] is False
    overrides = ["+model.precision=bf16", "common.fp16=false"]
    yaml = described(configuration_of_yaml("base", *places(data, tmp_path), *overrides))
    # What is left of fp16 there has no effect without it.
    assert differences(half, yaml).keys() == {*LOGGING, "common.fp16_init_scale", "common.fp16_scale_window"}


@pytest.mark.parametrize("gpus", [8, 16, 32, 64])
@pytest.mark.parametrize("name", TABLE_3)
def test_batch_is_the_paper_s_on_every_number_of_gpus(name: str, gpus: int, data: Path, tmp_path: Path) -> None:
    words = recipe_command(name, DATA=data, SAVE_DIR=tmp_path, GPUS=gpus)
    assert sequences_in_a_batch(configuration_of_command(words)) == 2048
    # The tables that the user reads before.
    recipe, yaml = header(PRETRAINING / f"{name}.sh"), header(PRETRAINING / "config" / f"{name}.yaml")
    numbers = {key: [int(n) for n in re.findall(r"\d+", recipe.split(key)[1].splitlines()[0])] for key in KEYS}
    assert dict(zip(numbers["GPUS  "], numbers["--update-freq"]))[gpus] == int(option(words, "--update-freq"))
    assert int(re.findall(r"--max-tokens (\d+)", recipe)[0]) == int(option(words, "--max-tokens"))
    assert f"{gpus} GPUs: [{option(words, '--update-freq')}]" in yaml


KEYS = ("GPUS  ", "--update-freq")


def option(words: list[str], name: str) -> str:
    """Return the value of an option that stands once in a command."""
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def header(path: Path) -> str:
    """Return the comment that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))])


def flops_of_a_token(name: str, baseline: bool = False) -> float:
    """Count the floating point operations of training per original token, by the model's matrix products."""
    layers, width, decoder_layers = SHAPES[name]
    sequence, masked = 512, 0.15
    visible = 1.0 if baseline else 1 - masked
    encoder_layer = visible * 24 * width**2 + 4 * visible**2 * sequence * width
    decoder_layer = 24 * width**2 + 4 * sequence * width
    # Of the layer under the head only keys and values are computed for all positions.
    last_layer = 4 * width**2 + masked * (20 * width**2 + 4 * sequence * width)
    if baseline:
        stacks = (layers - 1) * encoder_layer + last_layer
    else:
        stacks = layers * encoder_layer + (decoder_layers - 1) * decoder_layer + last_layer
    head = masked * (2 * width**2 + 2 * width * VOCABULARY[name])
    # The backward pass costs twice the forward pass.
    return 3 * (stacks + head)


def exaflop(name: str, baseline: bool = False) -> str:
    """Return the cost of the whole run as it is written in the texts."""
    tokens = TABLE_3[name]["Max Steps"] * 2048 * 512
    return f"{flops_of_a_token(name, baseline) * tokens / 1e18:,.0f}"


def days(name: str, peak: float) -> float:
    """Return the days of one device that reaches 30 % of its peak (FLOP/s)."""
    return flops_of_a_token(name) * TABLE_3[name]["Max Steps"] * 2048 * 512 / (0.3 * peak) / 86400


@pytest.mark.parametrize("name", TABLE_3)
def test_stated_cost_is_the_model_s(name: str) -> None:
    text = " ".join(line.lstrip("# ") for line in header(PRETRAINING / f"{name}.sh").splitlines())
    assert f"{flops_of_a_token(name) / 1e9:.3f} GFLOP a token" in text
    assert f"{exaflop(name)} exaFLOP" in text
    stated = [re.search(rf"([\d.]+) days of one {device}", text) for device in ("H100 or H200", "A100")]
    assert [float(match[1]) for match in stated if match] == pytest.approx(
        [days(name, 989e12), days(name, 312e12)], rel=0.03
    )
    # The same in the README's table.
    row = next(row for row in readme_rows() if row[0] == name.replace("_plus", "+").replace("_", ""))
    assert row[1:3] == [f"{flops_of_a_token(name) / 1e9:.3f}", exaflop(name)]
    assert [float(cell) for cell in row[3:5]] == [float(match[1]) for match in stated if match]
    assert row[5] == exaflop(name, baseline=True)


def readme_rows() -> list[list[str]]:
    """Return the cells of all rows of the README's tables."""
    lines = (PRETRAINING / "README.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_readme_s_batch_arithmetic_is_right() -> None:
    text = (PRETRAINING / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)(?: \([a-z+, ]+\))? \| ([\d,]+) \|((?: *\d* *\|){5})$", text, flags=re.MULTILINE)
    assert len(rows) == 5
    for sequences, max_tokens, cells in rows:
        assert int(max_tokens.replace(",", "")) == 512 * int(sequences)
        for gpus, cell in zip((1, 8, 16, 32, 64), cells.split("|")):
            batch = gpus * int(sequences)
            assert cell.strip() == (str(2048 // batch) if batch <= 2048 else "")


def test_several_nodes_run_the_same_with_torchrun(data: Path, tmp_path: Path) -> None:
    options = {"DATA": data, "SAVE_DIR": tmp_path, "GPUS": 32}
    one = recipe_command("base", **options)
    several = recipe_command("base", **options, NODES=4, NODE_RANK=2, MASTER_ADDR="node0", MASTER_PORT=12345)
    launcher = "torchrun --nnodes 4 --node-rank 2 --nproc-per-node 8 --master-addr node0 --master-port 12345"
    assert several == [*launcher.split(), "-m", "fairseq_cli.train", *one[1:]]
    assert differences(described(configuration_of_command(one)), described(configuration_of_command(several))) == {}


def test_options_of_the_user_win(data: Path, tmp_path: Path) -> None:
    words = recipe_command("tiny", "--lr", "3e-4", "--seed", "7", DATA=data, SAVE_DIR=tmp_path, GPUS=0)
    configuration = configuration_of_command(words)
    assert list(configuration.optimization.lr) == [3e-4]
    assert configuration.common.seed == 7
    assert list(configuration.lr_scheduler.lr) == [3e-4]


@pytest.mark.parametrize(
    ("name", "variables", "message"),
    [
        ("base", {"DATA": ""}, "set DATA to the folder"),
        ("base", {"SAVE_DIR": ""}, "set SAVE_DIR to the folder"),
        ("base", {"DATA": "nowhere"}, "there is no dict.txt in nowhere"),
        ("base", {"GPUS": "many"}, "GPUS must be a whole number, not 'many'"),
        ("base", {"GPUS": 24}, "takes 768 sequences at a time, and a batch of 2048 is no multiple"),
        ("base", {"SEQUENCES_PER_GPU": 0}, "SEQUENCES_PER_GPU and NODES must be at least 1"),
        ("base", {"METHOD": "bert"}, "METHOD must be maelm or mlm, not 'bert'"),
        ("base", {"PRECISION": "fp8"}, "PRECISION must be bf16, fp16 or fp32, not 'fp8'"),
        ("base", {"GPUS": 0, "PRECISION": "fp16"}, "PRECISION=fp16 needs a GPU"),
        ("base", {"NODES": 3}, "GPUS=8 must be a multiple of NODES=3"),
        ("base", {"NODES": 2}, "also set NODE_RANK (0 ... 1"),
        ("base", {"NODES": 2, "GPUS": 0}, "must be a multiple of NODES=2"),
    ],
)
def test_wrong_settings_are_explained(
    name: str, variables: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    settings = {"DATA": data, "SAVE_DIR": tmp_path / "run", "GPUS": 8, **variables}
    output = run_recipe(name, check=False, **settings)
    assert message in output
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_every_recipe_has_its_yaml_and_every_yaml_its_recipe() -> None:
    recipes = {path.stem for path in PRETRAINING.glob("*.sh")} - {"common"}
    assert recipes == {path.stem for path in (PRETRAINING / "config").glob("*.yaml")} == set(RECIPES)
