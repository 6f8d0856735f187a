"""``--device`` is one argument, the same in every command that has it, and refused in one line where torch has none."""

import argparse
import importlib
from typing import Any

import pytest
import torch

from fairseq_maelm import cli
from fairseq_maelm.devices import add_device_argument, check_device


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(cli.SUB_COMMANDS[name][0]).add_arguments(parser)
    return parser


def device_argument(parser: argparse.ArgumentParser) -> Any:
    found = [action for action in parser._actions if "--device" in action.option_strings]
    return (found[0].default, found[0].help) if found else None


COMMANDS = [name for name in cli.SUB_COMMANDS if device_argument(parser_of(name))]


def test_the_commands_that_run_a_model_have_it() -> None:
    assert set(COMMANDS) == {"analyze", "answer", "embed", "fill", "predict", "search"}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("device", ["cuda:99", "meta", "mps", "nonsense", "", "cuda:-1", "cpu:3"])
def test_every_command_refuses_what_is_not_there_before_all_else(name: str, device: str) -> None:
    common = argparse.ArgumentParser()
    add_device_argument(common)
    assert device_argument(parser_of(name)) == device_argument(common)
    run = importlib.import_module(cli.SUB_COMMANDS[name][0]).run
    with pytest.raises(ValueError, match="^--device .*") as caught:
        run(argparse.Namespace(device=device))
    assert "\n" not in str(caught.value)


def test_the_command_line_says_it_in_one_line() -> None:
    words = ["embed", "text", "--checkpoint", "none", "--output", "none", "--device", "cuda:99"]
    with pytest.raises(SystemExit, match=r"^maelm embed: error: --device cuda:99 is not there; of GPUs torch finds "):
        cli.main(words)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("cuda", 0, "none: use --device cpu"),
        ("cuda:2", 2, "2 of them, cuda:0 to cuda:1"),
        ("cpu", 0, None),
        ("cuda", 1, None),
        ("cuda:1", 2, None),
    ],
)
def test_gpus_are_counted(name: str, gpus: int, message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if message is None:
        check_device(name)
        return
    with pytest.raises(ValueError, match=f"--device {name} is not there; of GPUs torch finds {message}"):
        check_device(name)
