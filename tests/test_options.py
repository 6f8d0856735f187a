"""Options: their limits, their defaults in the help, and options made from settings classes."""

import argparse
import math
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fairseq_maelm.launch.command_line import repeated_option
from fairseq_maelm.options import (
    CommandParser,
    UsageError,
    add_settings,
    by_name,
    check_options,
    device_name,
    named,
    new_file,
    option,
    settings_of,
)


@dataclass(frozen=True)
class Settings:
    inputs: tuple[Path, ...] = option(help="what is read", positional=True)
    output: Path = option(help="new folder")
    share: float = option(0.5, help="share of the rows", minimum=0, maximum=1)
    count: int | None = option(None, help="number of rows", minimum=1, group="rows")
    form: str = option("a", help="layout", choices=("a", "b"))
    is_quick: bool = option(False, help="skip the checks")
    internal: int = 3

    def __post_init__(self) -> None:
        if self.count is not None and self.is_quick:
            raise ValueError("--count and --is-quick exclude each other")


def parse(*words: str) -> Settings:
    parser = CommandParser(prog="maelm test")
    add_settings(parser, Settings)
    return settings_of(Settings, parser.parse_args(words))


def test_settings_become_options_and_come_back() -> None:
    assert parse("x", "--output", "o") == Settings((Path("x"),), Path("o"))
    words = ["x", "y", "--output", "o", "--share", "1", "--count", "2", "--form", "b"]
    assert parse(*words) == Settings((Path("x"), Path("y")), Path("o"), 1.0, 2, "b")
    assert parse("x", "--output", "o", "--is-quick").is_quick


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "the following arguments are required: --output"),
        (["x", "--output", "o", "--share", "1.5"], "argument --share: must be at least 0 and at most 1, not 1.5"),
        (["x", "--output", "o", "--count", "0"], "argument --count: must be at least 1, not 0"),
        (["x", "--output", "o", "--output=p"], "--output is given twice, with o and p: give it once"),
        (["--is-quick", "x", "--output", "o", "--is-quick"], "--is-quick is given twice: give it once"),
        (["x", "--output", "o", "--shar", "0.1"], "there is no option --shar; did you mean --share?"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"maelm test: error: {message} (see maelm test --help)\n"


@pytest.mark.parametrize(
    ("rate", "wanted"), [(0.0, "above 0 and below 1"), (1.0, "above 0"), (math.nan, "above 0"), (0.5, ""), (None, "")]
)
def test_limits_of_options_of_fairseq(rate: float | None, wanted: str) -> None:
    @dataclass
    class Rates:
        rate: float | None = option(None, help="rate", above=0, below=1)

    with pytest.raises(ValueError, match=f"--rate must be {wanted}") if wanted else nullcontext():
        check_options(Rates(rate), Rates)


def test_what_settings_refuse_is_a_wrong_value_too() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        parse("x", "--output", "o", "--count", "2", "--is-quick")


def test_the_help_states_defaults() -> None:
    parser = CommandParser()
    add_settings(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "share of the rows (default: 0.5)" in text
    assert "number of rows (" not in text and "skip the checks (" not in text and "new folder (" not in text
    assert "rows: --count N number of rows" in text


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("auto", 0, None),
        ("auto", 1, None),
        ("cuda", 0, "torch cannot find cuda; it finds no GPU: give cpu"),
        ("cuda:2", 2, "torch cannot find cuda:2; it finds cuda:0 to cuda:1"),
        ("cpu", 0, None),
        ("cuda", 1, None),
        ("cuda:1", 2, None),
    ],
)
def test_gpus_are_counted(name: str, gpus: int, message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if message is None:
        assert device_name(name) == ({0: "cpu", 1: "cuda"}[gpus] if name == "auto" else name)
        return
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        device_name(name)


def test_an_output_needs_a_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert new_file(str(tmp_path / "new" / "file")) == tmp_path / "new" / "file"
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(argparse.ArgumentTypeError, match=f"{tmp_path} does not permit you to write, so"):
        new_file(str(tmp_path / "new" / "file"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "1", "--max-sentences", "2", "--batch-size", "3"], "--batch-size is given twice, with 2 and 3"),
        (
            ["--dropout-of-a-model", "0.1", "--dropout-of-a-model=0"],
            "--dropout-of-a-model is given twice, with 0.1 and 0",
        ),
        (["--cpu", "--lr", "-1", "--cpu"], "--cpu is given twice: give it once"),
        (["-s", "a", "-s", "b"], "-s is given twice, with a and b"),
        (["--lr", "-1", "--seed", "-1"], ""),
    ],
)
def test_options_of_fairseq_are_given_once(words: list[str], message: str) -> None:
    assert repeated_option(words).startswith(message) and bool(message) == bool(repeated_option(words))


def test_options_that_append_are_given_again() -> None:
    parser = CommandParser()
    parser.add_argument("--each", action="append", type=named)
    parser.add_argument("--all", action="extend", nargs="+")
    parser.add_argument("texts", nargs="*")
    args = parser.parse_args(["--each", "a=1", "--each=b=2", "--all", "x", "--all", "y", "--", "--each", "--each"])
    assert (len(args.each), args.all, args.texts) == (2, ["x", "y"], ["--each", "--each"])
    with pytest.raises(UsageError, match="--each gives a twice, as 1 and 2: give it once"):
        by_name([("a", "1"), ("a", "2")], "--each")
