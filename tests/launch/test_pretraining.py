"""`maelm pretrain --flops`: the number of updates is what the budget allows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from recipes.dry_runs import ROOT, printed_command
from recipes.test_costs import VOCABULARY, costs

from fairseq_maelm import cli
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.launch.recipes import PretrainingRecipe, read_recipe
from fairseq_maelm.models.flops import BatchShape, ModelShape, training_flops

KEPT = ROOT / "tests" / "end_to_end" / "kept"


def option(words: list[str], name: str) -> int:
    return int(words[words.index(f"--{name}") + 1])


@pytest.fixture
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A corpus with the vocabulary of a recipe, of which nothing but the dictionary is read."""
    symbols = VOCABULARY[request.param] - 5
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(symbols)))
    return tmp_path


@pytest.mark.parametrize(("data", "name"), [("modern_17m", "modern_17m"), ("base", "base")], indirect=["data"])
def test_the_stated_cost_of_a_recipe_buys_its_updates(data: Path, name: str) -> None:
    _, whole = costs(name)
    options = read_recipe(Path(name), PretrainingRecipe).options
    given = ("pretrain", data, "--output", data / "run", "--recipe", name, "--gpus", 0, "--flops")
    words = printed_command(*given, whole * (1 + 1e-9))
    assert option(words, "max-update") == options["max-update"]
    words = printed_command(*given, whole / 2)
    assert option(words, "max-update") == pytest.approx(options["max-update"] / 2, abs=1)
    if "warmup-updates" in options:
        assert option(words, "total-num-update") == option(words, "max-update")
        assert option(words, "warmup-updates") == options["warmup-updates"] / 2
    # Half of the text hidden in every step costs more in the head, and the machine's part of a batch does not matter.
    masked = printed_command(*given, whole / 2, "--set", "mask-prob=0.5", "mask-prob-end=0.5", "sequences-per-gpu=8")
    assert option(masked, "max-update") != option(words, "max-update")
    less = printed_command(*given, whole / 2, "--set", "sequences-per-gpu=8")
    assert option(less, "max-update") == option(words, "max-update")


def test_sizes_are_those_of_the_checkpoint() -> None:
    checkpoint = KEPT / "checkpoint_last.pt"
    words = printed_command(
        *("pretrain", KEPT / "data", "--output", KEPT / "none", "--checkpoint", checkpoint, "--flops", 1e10),
        *("--gpus", 0, "--set", "sequence-length=16", "batch-sequences=4", "sequences-per-gpu=4"),
    )
    model = read_checkpoint(checkpoint).config.model
    symbols = len((KEPT / "data" / "dict.txt").read_text().splitlines()) + 5
    task = {"mask_prob": 0.3, "tokens_per_sample": 16, "masked_input": "dropped", "encoder_mask_fraction": 0.0}
    task |= {"leave_unmasked_prob": 0.0, "random_token_prob": 0.0}
    batch = BatchShape.from_config(SimpleNamespace(**task), 4)
    assert option(words, "max-update") == int(1e10 / training_flops(ModelShape.from_config(model, symbols), batch)) > 20


@pytest.mark.parametrize("data", ["modern_17m"], indirect=True)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--flops", "0"], "must be above 0"),
        (["--flops", "nan"], "must be above 0"),
        (["--flops", "much"], "'much' is not a number"),
        (["--flops", "1e9"], "--flops 1e+09 is less than one update, which takes 7.58e+10 FLOPs"),
        (["--flops", "1e11"], "max-update=1 leaves no update for the last phase"),
        (["--flops", "1e15", "--set", "max-update=5"], "--flops decides the number of updates: omit --set max-update"),
    ],
)
def test_budgets_without_sense(data: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pretrain", str(data), "--output", str(data / "run"), "--recipe", "modern_17m", "--dry-run", "--gpus", "0"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, *given])
    # A wrong option is reported with status 2; what a recipe forbids is the text of the exit.
    error = capsys.readouterr().err if left.value.code == 2 else str(left.value.code)
    assert message in error and error.count("error:") == 1
