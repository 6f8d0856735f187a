"""The script that tests versions of Python, fairseq and torch, without making any environment."""

import sys
from pathlib import Path

import pytest
from support import load_script

ROOT = Path(__file__).resolve().parents[1]
matrix = load_script(ROOT / "scripts" / "matrix.py")


def test_rows_are_what_setup_py_supports() -> None:
    pythons = {combination.python for combination in matrix.COMBINATIONS.values()}
    assert pythons == {"3.10", "3.11", "3.12", "3.13"}
    assert {"==2.6.0", "==2.11.0"} < {combination.torch for combination in matrix.COMBINATIONS.values()}


def test_tests_are_those_of_check_sh() -> None:
    words = matrix.quick_tests()
    assert words[:2] == ["-m", "not slow and not exhaustive"] and "tests/contracts" in words
    assert all((ROOT / word.partition("::")[0]).exists() for word in [*words[2:], matrix.TRAINING])


def test_an_interpreter_is_asked_for_its_version() -> None:
    own = "{}.{}".format(*sys.version_info[:2])
    assert matrix.interpreter("2.0") is None
    found = matrix.interpreter(own)
    assert found is None or found.is_file()


@pytest.mark.parametrize(
    ("name", "cell"), [("main", "--fairseq-source was not given"), ("oldest", "no such Python here")]
)
def test_what_cannot_be_tested_says_so(name: str, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    assert cell in matrix.row(name, tmp_path, None)[3]


def test_a_run_is_told_by_its_summary(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    lines = "echo '=== 1 failed, 2 passed, 3 warnings in 4.00s ==='\necho 'a line of the log'\n"
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\n{lines}")
    (tmp_path / "bin" / "python").chmod(0o755)
    assert matrix.run_tests(tmp_path, [], tmp_path / "log") == "1 failed, 2 passed"
