"""Imports inside the package go one way, from the command line down to pure functions, and never in a circle."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .sources import PACKAGE, count_package_files, module_name, package_files, parse

# From the bottom up: a module may import its own layer and the layers above it in this table, never one below.
# The longest prefix decides, so that models.hub is not in the layer of models.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "pure functions",
        (
            *("version", "user_dir", "batch", "flops", "libraries", "memory", "corpus", "warm_start", "hf"),
            *("models.sizes", "data.masking", "tagging", "retrieval"),
            *("glue.metrics", "glue.layout", "glue.reading", "glue.truncation", "glue.folder"),
            *(f"prompting.{name}" for name in ("template", "metrics", "prompts", "tables", "few_shot", "checksums")),
        ),
    ),
    (
        "modules and data",
        (
            *("modules", "data", "optim", "fairseq_fixes", "squad", "prompting"),
            *("tagging.dataset", "retrieval.datasets", "retrieval.validation"),
        ),
    ),
    ("models and criterions", ("models", "criterions")),
    ("tasks", ("tasks",)),
    (
        "hub, export and analysis",
        (
            *(f"models.{name}" for name in ("hub", "hub_answers", "hub_embedding", "hub_prompts")),
            *("export", "importing", "runtime", "adaptation", "analysis", "sweep", "glue"),
            *("prompting.command", "prompting.inference", "tagging.predict", "tagging.tag_command"),
            *("squad.inference", "squad.predict_command", "squad.answer_command"),
            *("retrieval.prepare", "retrieval.prepare_command", "retrieval.embed", "retrieval.embed_command"),
        ),
    ),
    ("registration", ("",)),
    ("command line", ("cli",)),
)

# Imports against the direction, allowed inside functions only: (importing module, imported module) and the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("models.maelm", "models.hub"): "from_pretrained returns the interface, whose class needs the model's",
}

# Outside libraries that the lowest layer stays free of: its functions are tested and reused without fairseq.
NOT_FOR_PURE_FUNCTIONS = {"fairseq", "fairseq_cli", "hydra", "omegaconf"}


@dataclass(frozen=True)
class Import:
    """One import of a module of the package, where it stands and whether it runs when the file is imported."""

    source: str
    target: str
    place: str
    at_import: bool


def layer_of(module: str) -> int:
    """Return the height of a module's layer (0: pure functions)."""
    heights = {prefix: height for height, (_, prefixes) in enumerate(LAYERS) for prefix in prefixes}
    parts = module.split(".") if module else []
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in heights:
            return heights[prefix]
    if not parts:
        return heights[""]
    raise AssertionError(f"fairseq_maelm.{module} stands in no layer; add it to LAYERS in {Path(__file__).name}")


def absolute_targets(node: ast.AST, path: Path) -> Iterator[str]:
    """Yield the full dotted names that an import statement names, relative ones resolved."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            folder = path.parents[node.level - 1].relative_to(PACKAGE.parent)
            base = ".".join([*folder.parts, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}"


def resolve(name: str, modules: set[str]) -> str | None:
    """Return the module of the package that a dotted name lies in ("" for the package itself), None for others."""
    head, _, rest = name.partition(".")
    if head != PACKAGE.name:
        return None
    while rest and rest not in modules:
        rest = rest.rpartition(".")[0]
    return rest


def statements(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node of a file and whether it runs on import (not inside a function, not for type checkers only)."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, at_import = pending.pop()
        yield node, at_import
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        )
        pending.extend((child, at_import and not deferred) for child in ast.iter_child_nodes(node))


def imports_inside_package() -> tuple[list[Import], int]:
    """Return all imports of the package's own modules, and how many files were swept for them."""
    files = package_files()
    modules = {module_name(path) for path in files}
    found = []
    for path in files:
        for node, at_import in statements(parse(path)):
            for name in absolute_targets(node, path):
                target = resolve(name, modules)
                if target is not None:
                    place = f"{path.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 0)}"
                    found.append(Import(module_name(path), target, place, at_import))
    return found, len(files)


def test_imports_go_one_way() -> None:
    imports, swept = imports_inside_package()
    assert swept == count_package_files() > 0
    assert imports, "no import found inside the package, so this test sees nothing"
    wrong = [
        f"{item.place}: {LAYERS[layer_of(item.source)][0]} must not import fairseq_maelm.{item.target}"
        f" ({LAYERS[layer_of(item.target)][0]})"
        for item in imports
        if layer_of(item.target) > layer_of(item.source)
        and (item.at_import or (item.source, item.target) not in EXCEPTIONS)
    ]
    assert not wrong, "imports against the direction:\n" + "\n".join(wrong)


def test_every_module_stands_in_a_layer() -> None:
    files = package_files()
    assert len([layer_of(module_name(path)) for path in files]) == count_package_files() > 0


def test_exceptions_are_in_use() -> None:
    present = {(item.source, item.target) for item in imports_inside_package()[0]}
    assert set(EXCEPTIONS) <= present, "remove the exceptions that no import needs any more"


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for item in imports_inside_package()[0]:
        if item.at_import and item.target != item.source:
            graph.setdefault(item.source, set()).add(item.target)
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("modules import one another in a circle: " + " -> ".join(error.args[1]))
    assert len(order) > 1


def test_pure_functions_need_no_fairseq() -> None:
    pure = [path for path in package_files() if layer_of(module_name(path)) == 0]
    assert len(pure) >= len(LAYERS[0][1])
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}: {name}"
        for path in pure
        for node, _ in statements(parse(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in absolute_targets(node, path)
        if name.partition(".")[0] in NOT_FOR_PURE_FUNCTIONS
    ]
    assert not wrong, "pure functions import fairseq or its configuration libraries:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import fairseq_maelm.models.hub", ["fairseq_maelm.models.hub"]),
        ("from fairseq_maelm.tasks import maelm", ["fairseq_maelm.tasks.maelm"]),
        ("from . import steps", ["fairseq_maelm.corpus.steps"]),
        ("from ..models.maelm import MaelmModel", ["fairseq_maelm.models.maelm.MaelmModel"]),
    ],
)
def test_import_forms_are_understood(text: str, expected: list[str]) -> None:
    node = ast.parse(text).body[0]
    assert list(absolute_targets(node, PACKAGE / "corpus" / "cleaning.py")) == expected
