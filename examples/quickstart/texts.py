"""The quickstart's text, docstrings or the user's files, and its task: which library, or which file, is a text from?

Docstrings of the standard library and installed packages are read with ``ast``; nothing is imported or run. Whole
documents are divided: validation and test texts of pretraining and of the task are nowhere trained on.
"""

import ast
import hashlib
import json
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_maelm.corpus import read_documents
from fairseq_maelm.files import write_bytes

STANDARD_LIBRARY, _OWN_PACKAGE = "stdlib", "fairseq_maelm"
# Tests say little in English, and what a package vendors is another package's text.
_SKIPPED_FOLDERS = {"test", "tests", "_vendor", "vendor", "__pycache__", "site-packages", "dist-packages"}
_PROSE_DIRECTIVES = {"note", "warning", "tip", "hint", "important", "caution", "attention"}
_DIRECTIVE = re.compile(r"\.\. ?([\w:-]+?)::")
_UNDERLINE = re.compile(r"([-=~^\"'*#+_])\1{2,}$")
_LAYOUT = re.compile(r"\+[-=+]{3,}|[-=]{2,}( +[-=]{2,})+$|.*\|.*\||[A-Z][A-Za-z]*( [A-Za-z]+){0,2}:$")
_FENCE = re.compile(r"```|~~~")
_ROLE = re.compile(r"(?::[A-Za-z][\w:+.-]*:)?`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`_{0,2}")
_FOOTNOTE = re.compile(r"\s?\[[#\w]{1,12}\]_")
_STRONG = re.compile(r"\*\*(\w[^*]*\w|\w)\*\*|(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NEITHER_LETTER_NOR_SPACE = re.compile(r"[^\w ]|[\d_]")
# User's text: what makes a document of a long text, and an example of its short paragraphs.
_PARAGRAPHS_OF_DOCUMENT, _WORDS_OF_PASSAGE = 50, 50
# Shares of the documents. Documents outside of the task's classes are never held out for the task.
PRETRAINING_VALID, TASK_VALID, TASK_TEST = 0.02, 0.07, 0.13
MOST_CLASSES, FEWEST_CLASSES, FEWEST_WORDS = 8, 2, 10
MOST_EXAMPLES = {"train": 100, "valid": 60, "test": 150}
FEWEST_EXAMPLES = {"train": 30, "valid": 5, "test": 15}
# How libraries are called apart from the name they are imported by.
_ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"), "networkx": ("nx",), "numpy": ("np",), "scipy": ("sp",),
    "sklearn": ("scikit-learn", "scikit"), "torch": ("pytorch", "aten"),
}  # fmt: skip


@dataclass(frozen=True)
class Document:
    """The text of a module or of a part of the user's file.

    Attributes:
        source: the library or the file, which is the class in the task.
        name: of the module, or of the place in the user's file; unique.
        passages: the docstrings of the module, each as its paragraphs.
    """

    source: str
    name: str
    passages: tuple[tuple[str, ...], ...]


def write_documents(documents: Iterable[Document], path: Path) -> None:
    """Write documents as JSON lines; the file appears only when it is whole."""
    lines = (json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents)
    write_bytes(path, "".join(lines).encode("utf-8"))


def read_stored_documents(path: Path) -> list[Document]:
    """Read what ``write_documents`` wrote."""
    read = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [Document(each["source"], each["name"], tuple(map(tuple, each["passages"]))) for each in read]


# Docstrings


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is mostly words: at least five of them, and four fifths letters and spaces."""
    letters = len(paragraph) - len(_NEITHER_LETTER_NOR_SPACE.findall(paragraph))
    return len(paragraph.split()) >= 5 and letters >= 0.8 * len(paragraph)


def paragraphs_of(docstring: str) -> list[str]:
    """Turn a docstring into paragraphs of English, without examples, code, formulas, tables, headings and markup."""
    paragraphs = []
    for block in "\n".join(_prose_lines(docstring)).split("\n\n"):
        text = _FOOTNOTE.sub("", _ROLE.sub(r"\1", " ".join(block.split()).replace("``", "`")))
        paragraphs.append(" ".join(_STRONG.sub(lambda found: found[1] or found[2], text).replace("`", "").split()))
    return [paragraph for paragraph in paragraphs if is_prose(paragraph)]


def _prose_lines(docstring: str) -> Iterator[str]:
    """Yield the lines outside of code, stripped; an empty one ends a paragraph."""
    lines = docstring.expandtabs().splitlines()
    skip_deeper_than: int | None = None
    in_fence = in_doctest = False
    for raw, following in zip(lines, [*(line.strip() for line in lines[1:]), ""]):
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
            is_prose_inside = directive[1] in _PROSE_DIRECTIVES
            skip_deeper_than = skip_deeper_than if is_prose_inside else indent
            yield ""
            yield line[directive.end() :].strip() if is_prose_inside else ""
            continue
        if line.endswith("::"):
            skip_deeper_than, line = indent, line[:-1]
        is_heading = len(following) >= min(len(line), 3) and bool(_UNDERLINE.match(following))
        yield "" if is_heading or _UNDERLINE.match(line) or _LAYOUT.match(line) else line


def docstrings_of(source_code: str) -> list[str]:
    """Return the docstrings of a module, its classes and functions in their order; none of what does not parse."""
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
        # Only statements hold definitions; expressions, most of the tree, need no visit.
        blocks = (getattr(node, name, ()) for name in ("body", "handlers", "orelse", "finalbody"))
        pending.extend(reversed([child for block in blocks for child in block]))
    return found


def installed_modules() -> list[tuple[str, str, Path]]:
    """List library, module name and file of everything importable from source, in a fixed order."""
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    found = [(STANDARD_LIBRARY, name, path) for name, path in _modules_below(standard)]
    for folder in sorted({Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}):
        found += [(name.partition(".")[0], name, path) for name, path in _modules_below(folder)]
    return [module for module in found if module[0] != _OWN_PACKAGE]


def _modules_below(root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        paths = [Path(folder, file) for file in files if file.endswith(".py")]
        found += [(".".join(path.relative_to(root).with_suffix("").parts), path) for path in paths]
    return sorted(found)


def read_module(module: tuple[str, str, Path]) -> Document:
    """Read the docstrings of one of ``installed_modules``; a file that cannot be read has none."""
    library, name, path = module
    try:
        source_code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source_code = ""
    passages = (tuple(paragraphs_of(text)) for text in docstrings_of(source_code))
    return Document(library, name, tuple(passage for passage in passages if passage))


def without_repetitions(documents: Iterable[Document]) -> Iterator[Document]:
    """Drop every paragraph that came before, for libraries copy docstrings, which would leak into held-out text."""
    seen: set[str] = set()
    for document in documents:
        passages = []
        for passage in document.passages:
            fresh = tuple(text for text in dict.fromkeys(passage) if text not in seen)
            seen.update(fresh)
            passages += [fresh] if fresh else []
        if passages:
            yield Document(document.source, document.name, tuple(passages))


def installed_docstrings() -> Iterator[Document]:
    """Yield the docstrings of the standard library and of all installed packages, one document a module."""
    modules = installed_modules()
    with multiprocessing.Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        documents = pool.imap(read_module, modules, chunksize=32)
        yield from without_repetitions(tqdm(documents, "reading docstrings", len(modules), unit=" modules"))


# The user's files


def documents_of_files(paths: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of the user's files, long ones cut so that some text of every file can be held out."""
    names = [path.name.split(".")[0] or path.name for path in paths]
    for path, name in zip(paths, names):
        number = 0
        for paragraphs in read_documents(path):
            for first in range(0, len(paragraphs), _PARAGRAPHS_OF_DOCUMENT):
                number += 1
                passages = tuple(_passages(paragraphs[first : first + _PARAGRAPHS_OF_DOCUMENT]))
                yield Document(name if names.count(name) == 1 else str(path), str(number), passages)


def _passages(paragraphs: Sequence[str]) -> Iterator[tuple[str, ...]]:
    current: list[str] = []
    for paragraph in paragraphs:
        current.append(paragraph)
        if sum(len(text.split()) for text in current) >= _WORDS_OF_PASSAGE:
            yield tuple(current)
            current = []
    if current:
        yield tuple(current)


def held_out_sentences(text: Path, count: int = 4) -> list[str]:
    """Return the beginnings of at most so many paragraphs, one per line, with the longest word of each masked."""
    sentences = []
    for line in text.read_text(encoding="utf-8").splitlines():
        words = line.split()[:25]
        plain = [word for word in words if word.isalpha()]
        if len(words) >= 8 and plain:
            words[words.index(max(plain, key=len))] = "<mask>"
            sentences.append(" ".join(words))
    return sentences[:: max(1, len(sentences) // count)][:count]


# The task


@dataclass(frozen=True)
class Task:
    """A balanced classification task: the sources, sorted, and by split pairs of text and class in random order."""

    classes: tuple[str, ...]
    examples: dict[str, list[tuple[str, str]]]


def share_of(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone, uniform over names."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


def place_of(document: Document, classes: Sequence[str]) -> str:
    """Return the use of a document: "pretraining_valid", "valid", "test" (of the task) or "train" (of both)."""
    share, in_task = share_of(f"{document.source}/{document.name}"), document.source in classes
    if share < PRETRAINING_VALID:
        return "pretraining_valid"
    if in_task and share < PRETRAINING_VALID + TASK_VALID:
        return "valid"
    return "test" if in_task and share < PRETRAINING_VALID + TASK_VALID + TASK_TEST else "train"


def name_filter(sources: Iterable[str]) -> Callable[[str], bool]:
    """Make a function that tells whether a paragraph names one of the libraries, which would give the answer away."""
    libraries = [source for source in sources if source != STANDARD_LIBRARY]
    names = {name for source in libraries for name in (source.lower(), *_ALIASES.get(source, ()))}
    if not names:
        return lambda paragraph: False
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(map(re.escape, sorted(names)))})(?![a-z])")
    return lambda paragraph: pattern.search(paragraph.lower()) is not None


def examples_of(document: Document, gives_away: Callable[[str], bool]) -> list[str]:
    """Return the texts of a document to classify: one a passage, without the paragraphs that name a class."""
    found = (" ".join(text for text in passage if not gives_away(text)) for passage in document.passages)
    return [text for text in found if len(text.split()) >= FEWEST_WORDS]


def make_task(documents: Sequence[Document], hide_names: bool) -> Task | None:
    """Choose classes and draw equally many examples of each; None if there are too few classes or examples."""
    passages: Counter[str] = Counter()
    for document in documents:
        passages[document.source] += len(document.passages)
    classes = [source for source, _ in passages.most_common(MOST_CLASSES)]
    while len(classes) >= FEWEST_CLASSES:
        gives_away = name_filter(classes if hide_names else [])
        pools: dict[str, dict[str, list[str]]] = {split: defaultdict(list) for split in MOST_EXAMPLES}
        for document in documents:
            place = place_of(document, classes)
            if document.source in classes and place in pools:
                pools[place][document.source].extend(examples_of(document, gives_away))
        rich = [
            source
            for source in classes
            if all(len(pools[split][source]) >= fewest for split, fewest in FEWEST_EXAMPLES.items())
        ]
        if rich == classes:
            return Task(tuple(sorted(classes)), _balanced(pools, sorted(classes)))
        classes = rich
    return None


def _balanced(pools: dict[str, dict[str, list[str]]], classes: list[str]) -> dict[str, list[tuple[str, str]]]:
    examples = {}
    for split, most in MOST_EXAMPLES.items():
        count = min(most, *(len(pools[split][source]) for source in classes))
        # The order of hashes is a random draw that needs no generator and no seed.
        drawn = [(text, source) for source in classes for text in sorted(pools[split][source], key=share_of)[:count]]
        examples[split] = sorted(drawn, key=lambda example: share_of(example[0]))
    return examples


def write_pretraining_text(documents: Iterable[Document], classes: Sequence[str], train: Path, valid: Path) -> None:
    """Write the text for ``maelm prepare corpus``: one paragraph per line, a blank line after each document."""
    found: dict[str, list[str]] = {"train": [], "pretraining_valid": []}
    for document in documents:
        place = place_of(document, classes)
        if place in found:
            found[place].append("\n".join([*(text for passage in document.passages for text in passage), "", ""]))
    if not all(found.values()):
        raise ValueError(
            f"the text holds {sum(map(len, found.values()))} documents, too few to hold some out for validation: give "
            "more text, with a blank line between documents"
        )
    for place, path in (("train", train), ("pretraining_valid", valid)):
        path.write_text("".join(found[place]), encoding="utf-8")


def write_tables(task: Task, folder: Path) -> dict[str, Path]:
    """Write the task's tables for ``maelm prepare sentences`` and return them by split."""
    paths = {split: folder / f"{split}.tsv" for split in task.examples}
    for split, path in paths.items():
        # fairseq's dictionaries separate symbols by spaces.
        lines = (f"{' '.join(text.split())}\t{name.replace(' ', '_')}\n" for text, name in task.examples[split])
        path.write_text("".join(lines), encoding="utf-8")
    return paths


def read_examples(folder: Path, split: str) -> list[tuple[str, str]]:
    """Read the texts and labels of a table that ``write_tables`` wrote."""
    lines = (folder / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
    return [(text, label) for text, _, label in (line.partition("\t") for line in lines)]
