"""Messages that the guides explain exist; mkdocs itself checks the links and the navigation."""

import ast
import re
from collections.abc import Iterator

from .sources import ROOT, package_files, parse, project_files, read_text, relative

# Messages of other programs, which the guides explain too.
FOREIGN = (
    "argument --task: invalid choice",
    "argument --arch/-a: invalid choice",
    "Failed to import --user-dir",
    "_infer_slurm_init",
    "ZeroDivisionError",
    "CUDA out of memory",
    "Minimum loss scale reached",
    "AssertionError",
    "UserWarning",
    "unrecognized arguments",
    "encoded data size",
    "Could not load this library",
    "detected shared parameter",
)


def messages() -> Iterator[tuple[str, str]]:
    """Yield the messages that the guides explain, each with its guide."""
    for path in (path for path in project_files() if path.suffix == ".md"):
        _, _, section = read_text(path).partition("## When something goes wrong\n")
        for seen in re.findall(r"^\| (.*?) \| ", section.partition("\n## ")[0], re.MULTILINE):
            yield from ((relative(path), text) for text in re.findall(r"`([^`]+)`", seen) if " " in text)


def constants() -> str:
    """Return all texts of the package and the examples; what is inserted into a text separates its parts."""
    trees = [parse(path) for path in [*package_files(), *sorted((ROOT / "examples").rglob("*.py"))]]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\n".join(" ".join(node.value.split()) for node in nodes if isinstance(node.value, str))


def phrases(message: str) -> list[str]:
    """Return the longest phrases, of three words if there are any, between what is inserted into a message."""
    # Names, numbers and dots stand for what is inserted.
    parts = [part.strip(" :,;()").split() for part in re.split(r"\.\.\.|'[^']*'|\S*[\dA-Z_/]\S*", message)]
    length = min(3, max(map(len, parts)))
    return [" ".join(part[start : start + length]) for part in parts for start in range(len(part) - length + 1)]


def test_explained_messages_exist() -> None:
    texts = constants()
    ours = [(guide, text) for guide, text in messages() if not any(words in text for words in FOREIGN)]
    assert len(ours) > 60
    wrong = [f"{guide}: {text}" for guide, text in ours if not any(phrase in texts for phrase in phrases(text))]
    assert not wrong, "\n".join(wrong)
    assert not any(phrase in texts for phrase in phrases("the sailor 'x' rows to harbour 7"))
