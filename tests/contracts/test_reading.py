"""What a reader opens first stays short and says what the paper says; mkdocs checks the links of the guides."""

import ast
import re
from pathlib import Path

from .sources import PACKAGE, ROOT, parse

MODEL, ENCODER = PACKAGE / "models" / "maelm.py", PACKAGE / "models" / "encoder.py"


def method(path: Path, class_name: str, name: str) -> ast.FunctionDef:
    """A method of a class in a file."""
    (owner,) = (node for node in parse(path).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    (found,) = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return found


def test_forward_is_the_figure() -> None:
    text = ast.unparse(method(MODEL, "MaelmModel", "forward"))
    steps = r"\n +[\w, ]+ = self\.".join(["", r"encode\(.*", r"reassemble\(.*", r"decode\(.*", r"predict\(.*"])
    assert re.search(steps, text), text
    assert len(MODEL.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_encoder_is_embed_bias_layers() -> None:
    forward = method(ENCODER, "MaelmEncoder", "forward")
    statements = ast.unparse(forward.body[1:])
    assert len(statements.splitlines()) <= 12
    assert all(f"{name}(" in statements for name in ("self._embed", "self._bias", "run_layers"))


def test_the_page_about_the_code_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    places = {place for place in re.findall(r"`([\w./]+/[\w./]*)`", text) if "." in place or place.endswith("/")}
    assert len(places) > 30
    for place in places:
        roots = (ROOT, PACKAGE, PACKAGE / "modules")
        assert any((root / place).exists() for root in roots), place
