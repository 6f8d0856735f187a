"""What a reader opens first stays short and says what the paper says."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from .sources import PACKAGE, ROOT, parse, project_files

MODEL, ENCODER = PACKAGE / "models" / "maelm.py", PACKAGE / "models" / "encoder.py"


def method(path: Path, class_name: str, name: str) -> ast.FunctionDef:
    """A method of a class in a file."""
    (owner,) = (node for node in parse(path).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    (found,) = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return found


def called_by(statement: ast.stmt) -> str | None:
    """The method of self that a statement assigns the result of."""
    match statement:
        case ast.Assign(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name))):
            return name
    return None


def lines_of_code(function: ast.FunctionDef) -> int:
    """Lines of a function, its docstring apart."""
    docstring = function.body[0]
    assert ast.get_docstring(function) is not None and docstring.end_lineno and function.end_lineno
    return function.end_lineno - function.lineno + 1 - (docstring.end_lineno - docstring.lineno + 1)


def test_forward_is_the_figure() -> None:
    calls = [called_by(statement) for statement in method(MODEL, "MaelmModel", "forward").body]
    steps = ["encode", "reassemble", "decode", "predict"]
    assert any(calls[start : start + 4] == steps for start in range(len(calls))), calls
    assert len(MODEL.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_encoder_is_embed_bias_layers() -> None:
    forward = method(ENCODER, "MaelmEncoder", "forward")
    assert lines_of_code(forward) <= 20
    named = [node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(forward)
             if isinstance(node, (ast.Name, ast.Attribute))]  # fmt: skip
    assert {"_embed", "_bias", "run_layers"} <= set(named)


def test_backends_have_one_signature() -> None:
    from fairseq_maelm.modules.attention.backends import BACKENDS
    from fairseq_maelm.modules.attention.reference import attend

    expected = list(inspect.signature(attend).parameters.values())
    assert [parameter.name for parameter in expected] == ["query", "key", "value", "bias", "dropout"]
    assert BACKENDS["plain"].attend is attend
    for backend in BACKENDS.values():
        assert list(inspect.signature(backend.attend).parameters.values())[:5] == expected
    swept = list((PACKAGE / "modules").rglob("*.py"))
    assert swept and not [path for path in swept if "globals()" in path.read_text(encoding="utf-8")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(path for path in project_files() if path.suffix == ".md"), ids=str)
def test_links_of_guides_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_page_about_the_code_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    places = {place for place in re.findall(r"`([\w./]+/[\w./]*)`", text) if "." in place or place.endswith("/")}
    assert len(places) > 30
    for place in places:
        roots = (ROOT, PACKAGE, PACKAGE / "modules")
        assert any((root / place).exists() for root in roots), place
