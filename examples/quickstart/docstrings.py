"""English text that every Python installation holds: the docstrings of the standard library and installed packages.

Source files are read with ``ast``; nothing is imported or run.
"""

import ast
import json
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

STANDARD_LIBRARY = "stdlib"

# Tests say little in English, and what a package vendors is another package's text.
_SKIPPED_FOLDERS = {"test", "tests", "_vendor", "vendor", "__pycache__", "site-packages", "dist-packages"}
_OWN_PACKAGE = "fairseq_maelm"

_PROSE_DIRECTIVES = {"note", "warning", "tip", "hint", "important", "caution", "attention"}
_DIRECTIVE = re.compile(r"\.\. ?([\w:-]+?)::")
_UNDERLINE = re.compile(r"([-=~^\"'*#+_])\1{2,}$")
_TABLE_LINE = re.compile(r"\+[-=+]{3,}|[-=]{2,}( +[-=]{2,})+$|.*\|.*\|")
_SECTION_TITLE = re.compile(r"[A-Z][A-Za-z]*( [A-Za-z]+){0,2}:$")
_FENCE = re.compile(r"```|~~~")
_ROLE = re.compile(r"(?::[A-Za-z][\w:+.-]*:)?`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`_{0,2}")
_FOOTNOTE = re.compile(r"\s?\[[#\w]{1,12}\]_")
_STRONG = re.compile(r"\*\*(\w[^*]*\w|\w)\*\*|(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])")

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENT_BLOCKS = ("body", "handlers", "orelse", "finalbody")

_NEITHER_LETTER_NOR_SPACE = re.compile(r"[^\w ]|[\d_]")
_FEWEST_WORDS = 5
_SMALLEST_LETTER_SHARE = 0.8


@dataclass(frozen=True)
class Document:
    """One file's text.

    Attributes:
        source: where it comes from, and the class in the fine-tuning task: a library, or one of the user's files.
        name: of the module, or of the place in the user's file; unique.
        passages: the docstrings of the module, each as its paragraphs.
    """

    source: str
    name: str
    passages: tuple[tuple[str, ...], ...]


def write_documents(documents: Iterable[Document], path: Path) -> None:
    """Writes documents as JSON lines; the file appears only when it is whole."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8") as stream:
        for document in documents:
            stream.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
    os.replace(partial, path)


def read_stored_documents(path: Path) -> Iterator[Document]:
    """Yields what ``write_documents`` wrote."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            fields = json.loads(line)
            yield Document(fields["source"], fields["name"], tuple(map(tuple, fields["passages"])))


def inline_text(text: str) -> str:
    """Removes reStructuredText's inline marks: roles, links, literals, emphasis, footnotes."""
    text = text.replace("``", "`")
    text = _FOOTNOTE.sub("", _ROLE.sub(r"\1", text))
    return _STRONG.sub(lambda found: found[1] or found[2], text).replace("`", "")


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is mostly words: at least five of them, and four fifths letters and spaces."""
    letters = len(paragraph) - len(_NEITHER_LETTER_NOR_SPACE.findall(paragraph))
    return len(paragraph.split()) >= _FEWEST_WORDS and letters >= _SMALLEST_LETTER_SHARE * len(paragraph)


def paragraphs_of(docstring: str) -> list[str]:
    """Turns a docstring, dedented as ``ast.get_docstring`` does it, into re-flowed paragraphs of English.

    Examples, code, formulas, tables, headings and titles of sections ("Args:") are left out.
    """
    paragraphs: list[str] = []
    block: list[str] = []
    for line in [*_prose_lines(docstring), ""]:
        if line:
            block.append(line)
        elif block:
            paragraph = " ".join(inline_text(" ".join(block)).split())
            if is_prose(paragraph):
                paragraphs.append(paragraph)
            block = []
    return paragraphs


def _prose_lines(docstring: str) -> Iterator[str]:
    """Yields the lines outside of code, stripped; an empty one ends a paragraph."""
    lines = docstring.expandtabs().splitlines()
    skip_deeper_than: int | None = None
    in_fence = in_doctest = False
    for number, raw in enumerate(lines):
        line, indent = raw.strip(), len(raw) - len(raw.lstrip())
        if _FENCE.match(line):
            in_fence = not in_fence
        if in_fence or _FENCE.match(line):
            yield ""
            continue
        if skip_deeper_than is not None and line and indent <= skip_deeper_than:
            skip_deeper_than = None
        in_doctest = bool(line) and (in_doctest or line.startswith(">>>"))
        if skip_deeper_than is not None or in_doctest:
            yield ""
            continue
        directive = _DIRECTIVE.match(line)
        if directive:
            if directive[1] not in _PROSE_DIRECTIVES:
                skip_deeper_than = indent
            yield ""
            yield line[directive.end() :].strip() if directive[1] in _PROSE_DIRECTIVES else ""
            continue
        if line.endswith("::"):
            skip_deeper_than = indent
            line = line[:-1]
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        is_heading = len(following) >= min(len(line), 3) and bool(_UNDERLINE.match(following))
        is_layout = _UNDERLINE.match(line) or _TABLE_LINE.match(line) or _SECTION_TITLE.match(line)
        yield "" if is_heading or is_layout else line


def docstrings_of(source_code: str) -> list[str]:
    """Collects the docstrings of a module, its classes and functions in their order; none of what does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source_code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            found.append(text)
        # Definitions stand in statements only; expressions, most of the tree, need no visit.
        inside = [child for block in _STATEMENT_BLOCKS for child in getattr(node, block, ())]
        pending.extend(reversed(inside))
    return found


def installed_modules() -> list[tuple[str, str, Path]]:
    """Lists library, module name and file of everything importable from source, in a fixed order."""
    standard_library = Path(sysconfig.get_path("stdlib")).resolve()
    found = [(STANDARD_LIBRARY, name, path) for name, path in _modules_below(standard_library)]
    for folder in sorted({Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}):
        for name, path in _modules_below(folder):
            library = name.partition(".")[0]
            if library != _OWN_PACKAGE:
                found.append((library, name, path))
    return found


def _modules_below(root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                found.append((".".join(path.relative_to(root).with_suffix("").parts), path))
    return sorted(found)


def read_module(module: tuple[str, str, Path]) -> Document:
    """Reads the docstrings of one of ``installed_modules``; a file that cannot be read has none."""
    library, name, path = module
    try:
        source_code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source_code = ""
    passages = (tuple(paragraphs_of(text)) for text in docstrings_of(source_code))
    return Document(library, name, tuple(passage for passage in passages if passage))


def without_repetitions(documents: Iterable[Document]) -> Iterator[Document]:
    """Drops every paragraph that came before, in the same or another document, and what is then empty.

    Libraries copy docstrings among their functions and from one another. Dropping copies before text is divided keeps
    training text from coming back word for word in what is held out.
    """
    seen: set[str] = set()
    for document in documents:
        passages = []
        for passage in document.passages:
            fresh = []
            for paragraph in passage:
                if paragraph not in seen:
                    seen.add(paragraph)
                    fresh.append(paragraph)
            if fresh:
                passages.append(tuple(fresh))
        if passages:
            yield Document(document.source, document.name, tuple(passages))


def installed_docstrings() -> Iterator[Document]:
    """Yields the docstrings of the standard library and of all installed packages, one document a module."""
    modules = installed_modules()
    with multiprocessing.Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        documents = pool.imap(read_module, modules, chunksize=32)
        yield from without_repetitions(tqdm(documents, "reading docstrings", len(modules), unit=" modules"))
