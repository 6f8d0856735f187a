"""The project's files as the contract tests see them."""

import ast
import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fairseq_maelm"


def relative(path: Path) -> str:
    """Return the path below the project's root, as messages show it."""
    return path.relative_to(ROOT).as_posix()


def package_files() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def count_package_files() -> int:
    """Count the package's Python files a second way, so that a sweep that loses its files cannot pass."""
    return sum(name.endswith(".py") for _, _, names in os.walk(PACKAGE) for name in names)


def module_name(path: Path) -> str:
    """Return the dotted name below ``fairseq_maelm`` ("" for the package itself, "models" for models/__init__.py)."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


@cache
def read_text(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(read_text(path), filename=str(path))


def project_files() -> list[Path]:
    """Return every file that belongs to the project: what git tracks, and new files that it does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in sorted(set(listing.split("\0"))) if name]
    return [path for path in paths if path.is_file()]
