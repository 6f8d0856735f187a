"""The shell recipes in examples/ give fairseq-train the same options as the commands of ``maelm``."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm.checkpoints.locate import find_checkpoint
from fairseq_maelm.cli import main
from fairseq_maelm.launch.command_line import parse_training
from recipes.dry_runs import ROOT, printed_command, recipe_command

EXAMPLES = ROOT / "examples"

# With the rate of base models, which the scripts are for.
FINE_TUNING = ("finetune", "--gpus", 1, "--lr", 3e-5)
ENCODER = "maelm-english-14m-uncased"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs of the names that the scripts call; fairseq-train writes its arguments to a file."""
    folder = tmp_path / "programs"
    folder.mkdir()
    scripts = {"fairseq-train": f"printf '%s\\0' \"$@\" > {tmp_path}/words", "maelm": f"echo {ROOT / 'fairseq_maelm'}"}
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def script_options(programs: Path, script: str, words: list[Any], **variables: Any) -> dict[str, Any]:
    """Run a shell recipe and return the options that fairseq-train would have."""
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        **{k: str(v) for k, v in variables.items()},
    }
    subprocess.run(["bash", EXAMPLES / script, *map(str, words)], env=environment, check=True)
    return options_of((programs.parent / "words").read_text().rstrip("\0").split("\0"))


def options_of(words: list[str]) -> dict[str, Any]:
    return {name: value for name, value in vars(parse_training(words)).items() if name != "save_dir"}


def dry_run(*words: Any) -> dict[str, Any]:
    """Return the options of fairseq-train in a command of ``maelm`` with --dry-run."""
    return options_of(printed_command(*words)[1:])


def prepare(*words: Any) -> None:
    main(["prepare", *map(str, words), "--vocabulary", ENCODER])


@pytest.mark.parametrize(
    ("recipe", "gpus", "sequences", "precision"),
    [
        ("base", 8, 128, "fp16"),
        ("base_plus_plus", 64, 32, "fp16"),
        ("large_plus_plus", 64, 32, "fp16"),
        ("modern_150m", 8, 32, "bf16"),
        ("modern_17m", 0, 16, "bf16"),
    ],
)
def test_pretraining(recipe: str, gpus: int, sequences: int, precision: str, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\n")
    machine = ["--gpus", gpus, "--precision", precision, "--set", f"sequences-per-gpu={sequences}"]
    expected = options_of(recipe_command(recipe, tmp_path, *machine)[1:])
    variables = {"GPUS": gpus, "SEQUENCES": sequences, "PRECISION": precision}
    assert script_options(programs, f"pretraining/{recipe}.sh", [tmp_path, tmp_path / "run"], **variables) == expected


def test_adaptation(programs: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(Path(ENCODER))
    (tmp_path / "text.txt").write_text("The band released an album.\n\n" * 40)
    prepare("corpus", tmp_path / "text.txt", "--workers", 1, "--output", tmp_path / "data", "--valid-fraction", 0.1)
    settings = ["max-update=100", "sequences-per-gpu=32"]
    pretrain = ["pretrain", tmp_path / "data", "--output", tmp_path / "run", "--checkpoint", checkpoint]
    expected = dry_run(*pretrain, "--gpus", 1, "--precision", "bf16", "--set", *settings)
    words = [tmp_path / "data", checkpoint, tmp_path / "run", 100]
    assert script_options(programs, "adaptation/adapt.sh", words) == expected
    for_two = script_options(programs, "adaptation/adapt.sh", words, GPUS=2)
    assert (for_two["max_tokens"], for_two["update_freq"]) == (512 * 16, [1]), "the batch is the same"

    # General text, and settings that go before those of the checkpoint.
    changes = {"general_ratio": 0.1, "encoder_mask_fraction": 0.5, "validate_interval_updates": 7}
    command = [*pretrain, "--gpus", 0, "--set", *(f"{name}={value}" for name, value in changes.items())]
    expected = {
        **changes,
        "general_data": str(tmp_path / "data"),
        "general_loss_bound": 0.1,
        "save_interval_updates": 7,
        # The text is short, and the run has 20 updates.
        "warmup_updates": 10,
    }
    assert expected.items() <= dry_run(*command, "--general-data", tmp_path / "data").items()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dict.txt").write_text("a 1\n")
    with pytest.raises(SystemExit, match=f"{tmp_path / 'other'} was not prepared with the vocabulary of"):
        dry_run(*command, "--general-data", tmp_path / "other")


def test_finetuning(programs: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(Path(ENCODER))
    lines = [f"This film is {word}.\t{label}" for word, label in (("good", "yes"), ("bad", "no"))] * 40
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    task, table = tmp_path / "the film's task", tmp_path / "train.tsv"
    prepare("sentences", "--train", table, "--valid", table, "--output", task)
    # The script is GLUE's: passes over the data, and a head of random weights on the first token.
    words = [*FINE_TUNING, task, "--recipe", "_glue", "--checkpoint", checkpoint, "--output", tmp_path]
    expected = dry_run(*words)
    assert script_options(programs, "glue/finetune.sh", [task, checkpoint, tmp_path]) == expected


def test_questions(programs: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(Path(ENCODER))
    answer = {"text": "cat", "answer_start": 4}
    questions = [{"id": str(row), "question": "What sat?", "answers": [answer][: row % 2]} for row in range(200)]
    paragraphs = [{"context": "The cat sat on the mat.", "qas": questions}]
    (tmp_path / "data.json").write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    task, file = tmp_path / "task", tmp_path / "data.json"
    prepare("squad", "--train", file, "--valid", file, "--output", task)
    expected = dry_run(*FINE_TUNING, task, "--checkpoint", checkpoint, "--output", tmp_path)
    words = [task, checkpoint, tmp_path, expected["max_update"]]
    assert script_options(programs, "squad/finetune.sh", words) == expected


@pytest.mark.parametrize("script", ["pretraining/base.sh", "pretraining/modern_150m.sh", "adaptation/adapt.sh"])
def test_sequences_of_all_gpus_must_divide_the_batch(script: str, programs: Path) -> None:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GPUS": "3", "SEQUENCES": "8"}
    words = ["bash", EXAMPLES / script, "data", "checkpoint", "save", "100"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "GPUS x SEQUENCES is 24: it must divide" in done.stderr
    assert not (programs.parent / "words").exists()
