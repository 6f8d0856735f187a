"""The command line is frozen: every sub-command with its arguments, and one name for one thing."""

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from fairseq_maelm import cli
from fairseq_maelm.options import CommandParser

from .sources import ROOT
from .test_surface import compare

COMMANDS = Path(__file__).with_name("commands.json")

# Other spellings of what has a name already.
OTHER_SPELLINGS = {
    "--model": "--checkpoint",
    "--ckpt": "--checkpoint",
    "--out-file": "--output",
    "--out": "--output",
    "--max-positions": "--max-length",
    "--tokens-per-sample": "--max-length",
    "--max-tokens": "--batch-tokens",
    "--overwrite": "--replace",
    "--force": "--replace",
}


def arguments_of(name: str) -> list[argparse.Action]:
    parser = CommandParser()
    importlib.import_module(cli.module_of(name)).add_arguments(parser)
    return [action for action in parser._actions if action.dest != "help"]


def spelled(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def description_of(action: argparse.Action) -> str:
    """Everything about an argument that a command line can depend on."""
    parts = ["required" if action.required else f"default {action.default!r}"]
    if isinstance(action, (argparse._StoreTrueAction, argparse._StoreFalseAction)):
        parts = ["flag"]
    if action.nargs is not None and action.nargs != 0:
        parts.append(f"nargs {action.nargs}")
    if action.choices is not None:
        parts.append(f"one of {', '.join(map(str, action.choices))}")
    if isinstance(action, argparse._AppendAction):
        parts.append("repeatable")
    return "; ".join(parts)


def test_commands_and_their_arguments_are_the_recorded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # Defaults that depend on the machine: the device, and the number of cores.
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    surface: dict[str, Any] = {}
    for name in cli.SUB_COMMANDS:
        surface[name] = {spelled(action): description_of(action) for action in arguments_of(name)}
        for option in ("--workers", "--jobs"):
            if option in surface[name]:
                surface[name][option] = "default of the machine"
    compare(surface, COMMANDS, "The command line")


@pytest.mark.parametrize("name", cli.SUB_COMMANDS)
def test_one_thing_has_one_name(name: str) -> None:
    spellings = {spelled(action) for action in arguments_of(name)}
    wrong = {word: right for word, right in OTHER_SPELLINGS.items() if word in spellings}
    assert not wrong, f"maelm {name} spells arguments otherwise: {wrong}"
    assert "checkpoint" not in spellings, f"maelm {name} takes a checkpoint by its place: --checkpoint"


def documented() -> list[tuple[str, str]]:
    """Every command line in guides, recipes and programs that begins with maelm, and its place."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix not in (".md", ".sh", ".slurm", ".yaml", ".py") or parts[0] in ("runs", "build", "tests"):
            continue
        if any(part.startswith(".") for part in parts):
            continue
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        if path.name == "CHANGELOG.md":  # released versions had other commands
            text = text.split("\n## ")[1]
        for number, line in enumerate(text.splitlines(), 1):
            before = "`" if path.suffix == ".py" else r"(?:^\s*|`|\(|&& )"
            for match in re.finditer(before + r"maelm ((?:[a-z-]+ )?[a-z-]+[^`#|>)]*)", line):
                found.append((f"{path.relative_to(ROOT)}:{number}", match[1]))
    return found


def test_documented_commands_exist() -> None:
    """Sub-commands and options in guides are those of the command line."""
    options = {
        name: {word for action in arguments_of(name) for word in action.option_strings} for name in cli.SUB_COMMANDS
    }
    lines = documented()
    assert len(lines) > 100
    wrong = []
    for place, line in lines:
        # A shell's own arguments bring the -- along.
        words = re.split(r' -- | "\$@"', line)[0].split()
        if "error:" in words or words[0].startswith("-"):
            continue
        names = [name for name in (" ".join(words[:2]), words[0]) if name in options]
        if not names:
            if words[0] not in {name.split()[0] for name in options}:
                wrong.append(f"{place}: maelm {' '.join(words[:3])}")
            continue
        given = {word.partition("=")[0].strip(",.;:)'\"") for word in words if re.match(r"--[a-z]", word)}
        unknown = given - options[names[0]] - {"--help"}
        wrong += [f"{place}: maelm {names[0]} {option}" for option in sorted(unknown)]
    assert not wrong, "commands that do not exist:\n" + "\n".join(wrong)
