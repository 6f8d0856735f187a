"""Private names of fairseq are used in fairseq_fixes alone: what another fairseq may break lies in one folder."""

import ast
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fairseq_maelm.optim import muon
from fairseq_maelm.tasks import finetuning as task

from .sources import count_package_files, package_files, parse, relative

# What fairseq's documentation tells extensions to set.
MEANT_FOR_EXTENSIONS = {"_name", "_optimizer"}
# Of named tuples, and of nobody.
OF_PYTHON = {"_asdict", "_replace", "_"}


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def defined_names(tree: ast.Module) -> set[str]:
    """Return the private names that a file makes: of functions, classes, attributes and variables."""
    made = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            made.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
    return set(filter(is_private, made))


def names_of_fairseq() -> set[str]:
    """Return every private name that fairseq's source makes."""
    specification = find_spec("fairseq")
    assert specification is not None and specification.origin is not None
    found: set[str] = set()
    for path in Path(specification.origin).parent.rglob("*.py"):
        if "examples" not in path.parts:
            found |= defined_names(ast.parse(path.read_text(encoding="utf-8")))
    return found - MEANT_FOR_EXTENSIONS - OF_PYTHON


def used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of private attributes of others than the file itself, and of private imports from fairseq."""
    own = defined_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            # super()._name is another's, whoever overrides it.
            if (node.attr not in own or owner == "super()") and owner != "torch":
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("fairseq", "fairseq_cli"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, name) for name in names if is_private(name))


def uses(tree: ast.Module, of_fairseq: set[str]) -> list[tuple[int, str]]:
    """Return where a file uses a private name of fairseq."""
    return [(line, name) for line, name in used_names(tree) if name in of_fairseq]


def test_private_names_stand_in_fairseq_fixes() -> None:
    of_fairseq = names_of_fairseq()
    assert len(of_fairseq) > 400 and {"_DerivedMeter", "_get_iterator_for_epoch", "_optim_history"} <= of_fairseq
    files = package_files()
    assert len(files) == count_package_files() > 0
    found = {relative(path): uses(parse(path), of_fairseq) for path in files}
    in_fixes = {path for path in found if "/fairseq_fixes/" in path and found[path]}
    assert {Path(path).name for path in in_fixes} >= {"private.py", "loading.py"}
    others = {path: names for path, names in found.items() if names and path not in in_fixes}
    assert not others, others


def test_the_rule_can_tell() -> None:
    of_fairseq = {"_secret"}
    for text in (
        "meters._secret",
        "from fairseq.meters import _secret",
        "class C:\n def _secret(self): super()._secret()",
    ):
        assert uses(ast.parse(text), of_fairseq), text
    for text in ("self._secret = 1\nself._secret", "meters._mine", "from fairseq_maelm.meters import _secret"):
        assert not uses(ast.parse(text), of_fairseq), text


def test_no_class_overrides_a_private_method_of_fairseq() -> None:
    checked = 0
    for module in (task, muon):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            theirs = {name for base in cls.__mro__ if base.__module__.startswith("fairseq.") for name in vars(base)}
            if theirs and cls.__module__ == module.__name__:
                checked += 1
                assert not theirs & set(filter(is_private, vars(cls))) - {"_abc_impl"}, cls
    assert checked > 1
