"""What fairseq-train makes of a recipe: it is run for real up to the point where the task would be set up."""

import contextlib
import io
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import fairseq_cli.train
from fairseq.distributed import utils as distributed_utils
from support import logging_kept

import fairseq_maelm
from fairseq_maelm import cli

ROOT = Path(fairseq_maelm.__file__).resolve().parent.parent
PRETRAINING = ROOT / "examples" / "pretraining"
GUIDES = ROOT / "docs" / "guides"


class _Arrived(Exception):
    """fairseq has made its configuration and is about to use it."""


def printed_command(command: str, *arguments: Any) -> list[str]:
    """Return the words that a command of ``maelm`` prints with --dry-run."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), logging_kept():
        cli.main([command, "--dry-run", *map(str, arguments)])
    return shlex.split(output.getvalue())


def recipe_command(name: str, data: Path, *arguments: Any) -> list[str]:
    """Return the words of the command that ``maelm pretrain`` runs for a recipe."""
    return printed_command("pretrain", data, "--output", data / "run", "--recipe", name, *arguments)


def configuration_of_command(words: list[str]) -> Any:
    """Return the configuration with which ``fairseq-train``, given as its words, reaches the task."""
    arrived: Any | None = None

    def call_main(config: Any, main: Any, **unused: Any) -> None:
        nonlocal arrived
        with mock.patch.object(fairseq_cli.train.tasks, "setup_task", side_effect=_Arrived):
            try:
                main(config)
            except _Arrived:
                arrived = config

    replaced = mock.patch.object(distributed_utils, "call_main", call_main)
    with replaced, mock.patch.object(sys, "argv", words), logging_kept():
        fairseq_cli.train.cli_main()
    assert arrived is not None, "the command ended without reaching the task"
    return arrived
