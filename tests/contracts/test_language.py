"""The countable part of the style guide in CONTRIBUTING.md; codespell and ruff check spelling and docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sources import ROOT, parse

# Phrases that make a reader stop, and what to write in their place.
BANNED = {
    r"\banew\b": "again",
    r"\bbeside\b": "next to, with, and",
    r"(?<!there )\b(?:is|are|was|were) no\b(?! longer| more than)": "is not a, has no",
    r"\b(?:stands?|stood|lies?|lay) (?:in|beside|under|below|above|at|among)\b": "is in",
    r"\bof (?:its|their|his|one's) own\b": "own, separate",
    r"\bbecomes? of\b": "what happens to",
    r"\b(?:is|are) told\b": "is reported",
    r"\bof it \(": "the default is appended by itself",
    r"\bgiven again\b": "run again",
    r"\b(?:hereof|thereof|whereby|thereby)\b": "a second sentence",
    r"\b(?:behaviour|colour|neighbour|centre|artefact|licence|labell|modell)": "American spelling",
    r"(?:token|normal|optim|initial|serial)is(?!m)[aei]": "American spelling",
}
HEADLESS = re.compile(r"(?:What|Whether|How|Where|Which|Who|When|If)\b")
ARTICLE = re.compile(r"(?:The|A|An|All|One|Every|Each)\b")
FOLDERS = ("fairseq_maelm", "examples", "benchmarks", "scripts", "tests")
TEXTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.suffix in {".md", ".py", ".sh", ".yaml"}
    # The style guide and its test name the phrases.
    and not {"results", "contracts", "CONTRIBUTING.md"} & {*path.relative_to(ROOT).parts}
)


def banned(text: str) -> list[str]:
    """Say where a text has banned phrases."""
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}: write {instead}"
        for pattern, instead in BANNED.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


def summaries(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    """Yield the functions and classes of a file with the first lines of their docstrings."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            yield node, text.splitlines()[0]


def incomplete(path: Path) -> list[str]:
    """Say which summaries are no sentences: a function's is imperative, unless it is a property."""
    found = []
    for node, summary in summaries(path):
        decorators = {getattr(each, "id", getattr(each, "attr", "")) for each in getattr(node, "decorator_list", [])}
        is_function = isinstance(node, ast.FunctionDef) and not decorators & {"property", "cached_property", "setter"}
        if HEADLESS.match(summary) or (is_function and ARTICLE.match(summary)):
            found.append(f"line {node.lineno}: {summary}")
    return found


def test_language() -> None:
    assert len(TEXTS) > 500
    # The docstrings of tests say what holds.
    own = [path for path in TEXTS if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests")]
    found = [(path, line) for path in TEXTS for line in banned(path.read_text(encoding="utf-8"))]
    found += [(path, line) for path in own for line in incomplete(path)]
    assert not found, "\n".join(f"{path.relative_to(ROOT)}: {line}" for path, line in found)


@pytest.mark.parametrize(
    "text",
    ["made anew", "This is no mean of values.", "what becomes of a run", "The file lies in a folder.", "tokenised"],
)
def test_banned_phrases_are_found(text: str) -> None:
    assert len(banned(f"first line\n{text}\n")) == 1


@pytest.mark.parametrize("text", ["There is no such file.", "It is no longer read.", "optimism", "Tokenize it."])
def test_other_phrases_pass(text: str) -> None:
    assert banned(text) == []


def test_incomplete_summaries_are_found(tmp_path: Path) -> None:
    summaries = ("Whether it is one.", "The second.", "Return the third.")
    functions = [f'def function_{number}():\n    """{text}"""\n' for number, text in enumerate(summaries)]
    (tmp_path / "module.py").write_text("\n\n".join(functions), encoding="utf-8")
    assert [line.partition(": ")[2] for line in incomplete(tmp_path / "module.py")] == list(summaries[:2])
