"""The command ``maelm``: its sub-commands, options and messages."""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support import usage_error

import fairseq_maelm
from fairseq_maelm import cli


def write_corpus(path: Path) -> Path:
    """Write fifty small documents."""
    path.write_text("\n".join(f"Document {number} of the corpus.\nIt has two paragraphs.\n" for number in range(50)))
    return path


def test_help_names_every_sub_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    # Line breaks depend on the width of the terminal.
    output = " ".join(capsys.readouterr().out.split())
    assert all(name in output and summary in output for name, summary in cli.SUB_COMMANDS.items())
    assert all(f"{title}:" in output for title in cli.GROUPS) and "maelm fill --checkpoint" in output


def test_python_runs_the_package_as_the_command() -> None:
    words = [sys.executable, "-m", "fairseq_maelm", "--version"]
    root = Path(fairseq_maelm.__file__).parents[1]
    finished = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, f"maelm {fairseq_maelm.__version__}\n"), finished.stderr


@pytest.mark.parametrize("name", cli.SUB_COMMANDS)
def test_every_sub_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(cli.module_of(name))
    assert callable(module.run)
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert not [action.dest for action in parser._actions if not action.help]
    with pytest.raises(SystemExit) as caught:
        cli.main([*name.split(), "--help"])
    assert caught.value.code == 0
    assert f"usage: maelm {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["unheard-of"], ["prepare"], ["prepare", "unheard-of"], ["prepare", "corpus"], ["user-dir", "--surplus"]],
)
def test_wrong_usage_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = usage_error(capsys, arguments)
    assert line.startswith("maelm") and ": error: " in line and line.endswith(" --help)")


def test_commands_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: called.append(True))
    cli.main(["user-dir"])
    assert called == [True]


def test_prepare_writes_the_data_argument_and_nothing_else_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "text.txt")
    request = ["prepare", "corpus", str(tmp_path / "text.txt"), "--output", str(tmp_path / "data")]
    request += ["--vocabulary-size", "60", "--valid-fraction", "0.2", "--shards", "2", "--workers", "1"]
    cli.main(request)
    first = capsys.readouterr()
    assert first.out == f"{tmp_path / 'data' / 'shard00'}:{tmp_path / 'data' / 'shard01'}\n"
    assert "valid: 10 documents, 20 paragraphs" in first.err
    cli.main(request)
    second = capsys.readouterr()
    assert second.out == first.out
    assert "nothing to do" in second.err
