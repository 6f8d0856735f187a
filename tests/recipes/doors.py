"""What fairseq's two commands make of a recipe: each is run for real up to the point where the task would be set up."""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional
from unittest import mock

import fairseq_cli.hydra_train
import fairseq_cli.train
from fairseq.distributed import utils as distributed_utils
from hydra.core.global_hydra import GlobalHydra

import fairseq_maelm

ROOT = Path(fairseq_maelm.__file__).resolve().parent.parent
PRETRAINING = ROOT / "examples" / "pretraining"


class _Arrived(Exception):
    """fairseq has made its configuration and is about to use it."""


def run_recipe(name: str, *arguments: str, check: bool = True, **variables: Any) -> str:
    """Run a recipe dry, with these environment variables and no others of its own, and return all it writes."""
    own = {"DATA", "SAVE_DIR", "GPUS", "SEQUENCES_PER_GPU", "METHOD", "PRECISION", "NODES", "NODE_RANK", "MASTER_ADDR"}
    environment = {key: value for key, value in os.environ.items() if key not in own and not key.startswith("SLURM")}
    environment |= {"DRY_RUN": "1", **{key: str(value) for key, value in variables.items()}}
    result = subprocess.run(
        ["bash", str(PRETRAINING / f"{name}.sh"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=os.sep,
    )
    assert (result.returncode == 0) == check, result.stdout
    return result.stdout


def recipe_command(name: str, *arguments: str, **variables: Any) -> list[str]:
    """Return the words of the command that a recipe would run."""
    return shlex.split(run_recipe(name, *arguments, **variables))


def configuration_of_command(words: list[str]) -> Any:
    """Return the configuration with which ``fairseq-train``, given as its words, reaches the task."""
    if words[0] == "torchrun":
        words = words[words.index("fairseq_cli.train") :]
    return _arrive(fairseq_cli.train.cli_main, words)


def configuration_of_yaml(name: str, *overrides: str) -> Any:
    """Return the configuration with which ``fairseq-hydra-train`` reaches the task for a YAML file of the recipes."""
    GlobalHydra.instance().clear()
    words = ["fairseq-hydra-train", "--config-dir", str(PRETRAINING / "config"), "--config-name", name, *overrides]
    return _arrive(fairseq_cli.hydra_train.cli_main, words)


def _arrive(command: Any, words: list[str]) -> Any:
    arrived: Optional[Any] = None

    def call_main(config: Any, main: Any, **unused: Any) -> None:
        nonlocal arrived
        with mock.patch.object(fairseq_cli.train.tasks, "setup_task", side_effect=_Arrived):
            try:
                main(config)
            except _Arrived:
                arrived = config

    replaced = mock.patch.object(distributed_utils, "call_main", call_main)
    with replaced, mock.patch.object(sys, "argv", words), _logging_kept():
        command()
    assert arrived is not None, "the command ended without reaching the task"
    return arrived


@contextmanager
def _logging_kept() -> Iterator[None]:
    # Both commands set up the root logger for a process of their own.
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
