"""Run the quick tests and one training on every supported combination of Python, fairseq and torch; print the table.

    python scripts/matrix.py [NAME...] [--folder FOLDER] [--fairseq-source FOLDER]

Environments are made by scripts/setup.sh and kept in the folder: the first run takes some 6 GB and 10 minutes for each,
mostly for torch. An interpreter is looked up as python3.X on the PATH and among pyenv's versions; a row without one
says so. fairseq's main branch is installed over the release from a checkout of its source.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TRAINING = "tests/end_to_end/test_resume.py::test_resumed_at_the_end_of_an_epoch"
EXTRAS = "dev,hf,plots,slurm"


class Combination(NamedTuple):
    """A tested combination of versions; ``torch`` is pip's version specifier. The Python determines ``fairseq``."""

    python: str
    torch: str
    fairseq: str = ""


COMBINATIONS = {
    "oldest": Combination("3.10", "==2.6.0", "0.12.2"),
    "main": Combination("3.10", "==2.6.0", "main branch"),
    "usual": Combination("3.11", "==2.13.0", "fixed 0.12.3.1"),
    "gpu": Combination("3.12", "==2.11.0", "fixed 0.12.3.1"),
    "newest": Combination("3.13", ">=2.13", "fixed 0.12.3.1"),
}


def interpreter(version: str) -> Path | None:
    """Find a Python of a version on the PATH or among pyenv's."""
    found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in [*found, *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]:
        probe = "import sys; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([candidate, "-c", probe], capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return candidate
    return None


def set_up(combination: Combination, python: Path, venv: Path, source: Path | None) -> bool:
    """Make the environment, or bring it up to date; return whether that worked."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    constraint = venv.with_suffix(".txt")
    constraint.write_text(f"torch{combination.torch}\n", encoding="utf-8")
    variables = {"PYTHON": str(python), "MAELM_VENV": str(venv), "PIP_CONSTRAINT": str(constraint)}
    setup = ["bash", str(ROOT / "scripts" / "setup.sh"), EXTRAS]
    if subprocess.run(setup, env={**os.environ, **variables}).returncode:
        return False
    if source is None:
        return True
    words = [venv / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-build-isolation", source.resolve()]
    return subprocess.run(words).returncode == 0


def quick_tests() -> list[str]:
    """Return what scripts/check.sh --fast gives pytest."""
    found = re.search(r"FAST=\((-m .*)\)", (ROOT / "scripts" / "check.sh").read_text(encoding="utf-8"))
    assert found is not None
    return shlex.split(found[1])


def run_tests(venv: Path, words: list[str], log: Path) -> str:
    """Run pytest in an environment and return its summary without decoration."""
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    command = [venv / "bin" / "python", "-m", "pytest", "-q", "--show-capture=no", "--numprocesses", "2", *words]
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    found = re.findall(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", log.read_text(encoding="utf-8"), re.MULTILINE)
    return re.sub(r", \d+ warnings?", "", found[-1]) if found else "pytest failed to run"


def row(name: str, folder: Path, source: Path | None) -> list[str]:
    """Test a combination: Python, fairseq, torch, the outcome of the quick tests, and of the training."""
    combination = COMBINATIONS[name]
    known = [combination.python, combination.fairseq]
    if name == "main" and source is None:
        return [*known, combination.torch, "not tested: --fairseq-source was not given", ""]
    python = interpreter(combination.python)
    if python is None:
        return [*known, combination.torch, "not tested: no such Python here", ""]
    venv = folder / name
    if not set_up(combination, python, venv, source if name == "main" else None):
        return [*known, combination.torch, "cannot be installed", ""]
    probe = "import torch; print(torch.__version__.split('+')[0])"
    version = subprocess.run([venv / "bin" / "python", "-c", probe], capture_output=True, text=True).stdout.strip()
    tests = run_tests(venv, quick_tests(), folder / f"{name}-tests.log")
    return [*known, version, tests, run_tests(venv, [TRAINING], folder / f"{name}-training.log")]


def main() -> int:
    """Test what was asked for; return 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMBINATIONS, []], metavar="NAME", help=", ".join(COMBINATIONS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="for environments and logs")
    parser.add_argument("--fairseq-source", type=Path, help="checkout of fairseq's main branch")
    args = parser.parse_args()
    rows = []
    for name in args.names or COMBINATIONS:
        print(f"=== {name}", flush=True)
        rows.append(row(name, args.folder.resolve(), args.fairseq_source))
    print("\n| Python | fairseq | torch | quick tests | a training, resumed |\n|---|---|---|---|---|")
    print("\n".join(f"| {' | '.join(cells)} |" for cells in rows))
    return int(any("failed" in cell or "error" in cell or "cannot" in cell for cells in rows for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
