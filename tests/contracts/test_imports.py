"""Layers: ground < core < features < commands. Imports go down or stay in their layer, and never in a circle.

Ground is used by everybody and imports nothing above. The core is pretraining alone. A feature uses the core and no
other feature; the folder around features holds what several of them share. Commands, with the root files that users
import and call, may use everything, and nothing imports them. Imports inside functions and for type checkers count
like all others. There is no entry for a file within a folder: it belongs to the layer of its folder.

``registration`` imports modules that it finds by the names of files and folders, as fairseq does: it names none.
The version is read from the package itself, which every import has loaded already.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from .sources import PACKAGE, count_package_files, module_name, package_files, parse

GROUND, CORE, FEATURES, COMMANDS = "ground", "core", "features", "commands"
LAYERS = (GROUND, CORE, FEATURES, COMMANDS)

# What lies at the top of the package by layer, folders and files; a deeper folder belongs to the one around it.
ROOMS = {
    GROUND: ("batch", "options", "files", "text", "hf"),
    CORE: (
        *("registration", "corpus", "data", "modules", "architecture", "models", "tasks", "criterions", "optim"),
        *("checkpoints", "fairseq_fixes", "launch"),
    ),
    FEATURES: ("analysis", "finetuning", "interop", "scoring", "sweep"),
    COMMANDS: ("commands", "", "__main__", "cli"),
}

# Folders of several features: each inner folder is a feature, and the files around them are shared.
GROUPS_OF_FEATURES = ("finetuning",)
# Sweeps are made of fine-tunings: they may use what the features of that group share.
KNOWN_GROUPS = {"sweep": ("finetuning",)}
# What some folders may use of the package, and what they keep away from, beyond their layer.
ONLY = {
    "files": ("files", "options"),
    "text": ("files", "text"),
    "hf": ("hf", "files"),
}


class Import(NamedTuple):
    """One import of a module of the package, and where it stands."""

    source: str
    target: str
    place: str


def layer_of(module: str) -> str:
    """The layer of a module of the package, by the first part of its name."""
    room = module.partition(".")[0]
    return next(layer for layer, rooms in ROOMS.items() if room in rooms)


def feature_of(module: str) -> str:
    """The feature that a module of that layer belongs to; files that a group shares have the name of the group."""
    parts = module.split(".")
    if parts[0] in GROUPS_OF_FEATURES:
        is_inside = len(parts) > 1 and (PACKAGE / parts[0] / parts[1]).is_dir()
        return ".".join(parts[: 2 if is_inside else 1])
    return parts[0]


def is_allowed(source: str, target: str) -> bool:
    """Whether one module may import another."""
    height, depth = LAYERS.index(layer_of(source)), LAYERS.index(layer_of(target))
    if height != depth:
        return height > depth
    if layer_of(source) != FEATURES:
        return True
    feature = feature_of(source)
    return feature_of(target) in (feature, feature.partition(".")[0], *KNOWN_GROUPS.get(feature, ()))


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
            if (base, alias.name) != (PACKAGE.name, "__version__"):
                yield f"{base}.{alias.name}"


def resolve(name: str, modules: set[str]) -> str | None:
    """Return the module of the package that a dotted name lies in ("" for the package itself), None for others."""
    head, _, rest = name.partition(".")
    if head != PACKAGE.name:
        return None
    while rest and rest not in modules:
        rest = rest.rpartition(".")[0]
    return rest


def imports_inside_package() -> tuple[list[Import], int]:
    """Return all imports of the package's own modules, and how many files were swept for them."""
    files = package_files()
    modules = {module_name(path) for path in files}
    found = []
    for path in files:
        for node in ast.walk(parse(path)):
            for name in absolute_targets(node, path):
                target = resolve(name, modules)
                if target is not None and target != module_name(path):
                    place = f"{path.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 0)}"
                    found.append(Import(module_name(path), target, place))
    return found, len(files)


def test_every_room_belongs_to_one_layer() -> None:
    named = [room for rooms in ROOMS.values() for room in rooms]
    assert sorted(named) == sorted({module_name(path).partition(".")[0] for path in package_files()})


def test_imports_go_down() -> None:
    imports, swept = imports_inside_package()
    assert imports and swept == count_package_files()
    wrong = [
        f"{item.place}: {item.source} ({layer_of(item.source)}) must not import {item.target or 'the package itself'} "
        f"({layer_of(item.target)})"
        for item in imports
        if not is_allowed(item.source, item.target)
    ]
    assert not wrong, f"{len(wrong)} imports against the plan:\n" + "\n".join(wrong)


@pytest.mark.parametrize("what", ["modules", "folders"])
def test_no_circles(what: str) -> None:
    graph: dict[str, set[str]] = {}
    for item in imports_inside_package()[0]:
        source, target = item.source, item.target
        if what == "folders":
            source, target = source.partition(".")[0], target.partition(".")[0]
        if source != target:
            graph.setdefault(source, set()).add(target)
    try:
        assert len(list(TopologicalSorter(graph).static_order())) > 1
    except CycleError as error:
        pytest.fail(f"{what} import one another in a circle: " + " -> ".join(reversed(error.args[1])))


def test_folders_keep_to_what_they_need() -> None:
    wrong = [
        f"{item.place}: {folder} must not import {item.target}"
        for item in imports_inside_package()[0]
        for folder, allowed in ONLY.items()
        if item.source.partition(".")[0] == folder and item.target.partition(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("models.maelm", "text.dictionary", True),
        ("text.dictionary", "models.maelm", False),
        ("finetuning.squad.task", "tasks.encoder_task", True),
        ("finetuning.squad.task", "finetuning.tagging.task", False),
        ("sweep.grid", "finetuning.kinds", True),
        ("sweep.grid", "finetuning.squad.task", False),
        ("analysis.measurements", "interop.export.exporter", False),
        ("analysis.measurements", "cli", False),
        ("data.blocks", "", False),
        ("launch.command_line", "commands.pretrain", False),
    ],
)
def test_the_plan_can_tell(source: str, target: str, allowed: bool) -> None:
    assert is_allowed(source, target) == allowed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import fairseq_maelm.models.hub", ["fairseq_maelm.models.hub"]),
        ("from fairseq_maelm.tasks import maelm", ["fairseq_maelm.tasks.maelm"]),
        ("from . import steps", ["fairseq_maelm.corpus.steps"]),
    ],
)
def test_import_forms_are_understood(text: str, expected: list[str]) -> None:
    node = ast.parse(text).body[0]
    assert list(absolute_targets(node, PACKAGE / "corpus" / "cleaning.py")) == expected
