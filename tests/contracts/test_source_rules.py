"""What no file may hold, and how long the package's files are; ruff checks prints and docstrings."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .sources import ROOT, count_package_files, package_files, parse, project_files, read_text, relative

LONGEST_FILE = 450
LONGEST_FUNCTION = 50

# Spelled in pieces, so that this file does not find itself.
UNFINISHED = re.compile(rf"\b({'|'.join(['TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X', 'HA' + 'CK', 'for' + ' now'])})\b")
# A folder that exists on one machine only, or a neighbor of a checkout, works for nobody else.
MACHINE_PATH = re.compile(r"(?<![\w.~}\]-])/(?:work|home|root|opt|mnt|Users)/\w|\.\./shared\b|\bfile:///")
TEXT_SUFFIXES = {".py", ".sh", ".md", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".txt", ".json", ".slurm", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_after_docstring(node: Function) -> list[ast.stmt]:
    """Return a function's statements without its docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def stubs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A function that does nothing, or only says that it is not written, promises what it does not do."""
    protocols = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "Protocol" in ast.dump(node)]
    declared = {function for node in protocols for function in node.body}
    for node in functions(tree):
        body = [ast.unparse(statement) for statement in body_after_docstring(node)]
        if node not in declared and (not body or re.match(r"pass$|\.\.\.$|raise NotImplementedError\b", body[0])):
            yield node.lineno, f"{node.name} is a stub"


def long_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A function is read in one look."""
    for node in functions(tree):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > LONGEST_FUNCTION:
            yield node.lineno, f"{node.name} has {length} lines (at most {LONGEST_FUNCTION})"


def runs_what_a_file_says(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings are not evaluated, and files from elsewhere are read as data, by the functions that are made for it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called == "eval" or called.split(".")[-1] in ("load_checkpoint_to_cpu", "load_model_ensemble"):
            yield node.lineno, called
        if called == "torch.load" and options.get("weights_only") != "True":
            yield node.lineno, "torch.load without weights_only=True"
        safely = options.get(None) == "safely" or options.get("trust_remote_code") == "False"
        if called.endswith(".from_pretrained") and not safely:
            yield node.lineno, f"{called} without trust_remote_code=False"


Rule = Callable[[ast.Module], Iterator[tuple[int, str]]]

# Each rule of the package with a text that it must refuse and one that it must accept.
RULES: dict[Rule, tuple[str, str]] = {
    stubs: (
        'def f():\n    """Text."""\n    raise NotImplementedError',
        "def f():\n    return None\nclass C(Protocol):\n    def f(self): ...",
    ),
    long_functions: (
        "def f():\n" + "    a = 1\n" * LONGEST_FUNCTION,
        "def f():\n" + "    a = 1\n" * (LONGEST_FUNCTION - 1),
    ),
    runs_what_a_file_says: ("torch.load(path)", "torch.load(path, weights_only=True)"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule: Rule) -> None:
    files = package_files()
    assert len(files) == count_package_files() > 0
    found = [f"{relative(path)}:{line}: {text}" for path in files for line, text in rule(parse(path))]
    assert not found, "\n".join([rule.__doc__ or rule.__name__, *found])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_can_tell(rule: Rule) -> None:
    refused, accepted = RULES[rule]
    assert list(rule(ast.parse(refused)))
    assert not list(rule(ast.parse(accepted)))


def test_package_files_are_short() -> None:
    lengths = {relative(path): len(read_text(path).splitlines()) for path in package_files()}
    assert len(lengths) == count_package_files() > 0
    too_long = {name: length for name, length in lengths.items() if length > LONGEST_FILE}
    assert not too_long, f"files of more than {LONGEST_FILE} lines: {too_long}"


def text_files() -> list[Path]:
    """Return the project's files that are text, its own large data left out."""
    return [path for path in project_files() if path.suffix in TEXT_SUFFIXES]


@pytest.mark.parametrize(
    ("pattern", "refused", "accepted"),
    [
        (UNFINISHED, "# TO" + "DO: faster", "a list of things to do"),
        (MACHINE_PATH, "cd /wo" + "rk/main", "https://example.org/home/page and /path/to/work/folder"),
    ],
    ids=["marks of unfinished work", "paths of one machine"],
)
def test_no_file_holds(pattern: re.Pattern[str], refused: str, accepted: str) -> None:
    assert pattern.search(refused)
    assert not pattern.search(accepted)
    files = text_files()
    names = {relative(path) for path in files}
    assert {"setup.py", "scripts/setup.sh", "scripts/check.sh", ".ci/run", "LICENSE"} <= names
    assert len(files) >= count_package_files() + 5
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_continuous_integration_runs_the_checks_and_nothing_else() -> None:
    commands = [
        line
        for line in read_text(ROOT / ".ci" / "run").splitlines()
        if line and not line.startswith("#") and re.match(r"(bash|python\S*|pip|\./|sh)\b", line)
    ]
    assert commands == ["bash scripts/check.sh"]
