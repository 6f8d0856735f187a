"""The quickstart's text, docstrings or the user's files, and its task: are two words of a sentence swapped?

Docstrings of the standard library and installed packages are read with ``ast``; nothing is imported or run. Whole
documents are divided: validation and test texts of pretraining and of the task are nowhere trained on.
"""

import ast
import hashlib
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tqdm import tqdm

from fairseq_maelm.corpus import read_documents

_OWN_PACKAGE = "fairseq_maelm"
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
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+")
# What makes a document of a long text of the user's.
_PARAGRAPHS_OF_DOCUMENT = 50
# Shares of the documents that are held out.
PRETRAINING_VALID, TASK_TEST = 0.02, 0.04
# Words of the task's sentences, and numbers of its examples.
FEWEST_WORDS, MOST_WORDS = 6, 30
MOST_EXAMPLES = {"train": 4000, "test": 1000}
FEWEST_EXAMPLES = {"train": 100, "test": 20}
AS_WRITTEN, SWAPPED = LABELS = ("as_written", "swapped")


@dataclass(frozen=True)
class Document:
    """The text of a module or of a part of the user's file.

    Attributes:
        name: of the module, or of the file and the place in it; unique.
        paragraphs: its text.
    """

    name: str
    paragraphs: tuple[str, ...]


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


def installed_modules() -> list[tuple[str, Path]]:
    """List name and file of everything importable from source, each name once, in a fixed order."""
    found = dict(_modules_below(Path(sysconfig.get_path("stdlib")).resolve()))
    for folder in sorted({Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}):
        found |= dict(_modules_below(folder))
    return [(name, path) for name, path in found.items() if name.partition(".")[0] != _OWN_PACKAGE]


def _modules_below(root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        paths = [Path(folder, file) for file in files if file.endswith(".py")]
        found += [(".".join(path.relative_to(root).with_suffix("").parts), path) for path in paths]
    return sorted(found)


def read_module(module: tuple[str, Path]) -> Document:
    """Read the docstrings of one of ``installed_modules``; a file that cannot be read has none."""
    name, path = module
    try:
        source_code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source_code = ""
    return Document(name, tuple(chain.from_iterable(map(paragraphs_of, docstrings_of(source_code)))))


def without_repetitions(documents: Iterable[Document]) -> Iterator[Document]:
    """Drop every paragraph that came before, for libraries copy docstrings, which would leak into held-out text."""
    seen: set[str] = set()
    for document in documents:
        fresh = tuple(text for text in dict.fromkeys(document.paragraphs) if text not in seen)
        seen.update(fresh)
        if fresh:
            yield Document(document.name, fresh)


def installed_docstrings() -> Iterator[Document]:
    """Yield the docstrings of the standard library and of all installed packages, one document a module."""
    modules = installed_modules()
    with multiprocessing.Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        documents = pool.imap(read_module, modules, chunksize=32)
        yield from without_repetitions(tqdm(documents, "reading docstrings", len(modules), unit=" modules"))


# The user's files


def documents_of_files(paths: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of the user's files, long ones cut so that some text of every file can be held out."""
    for path in paths:
        numbers = count(1)
        for paragraphs in read_documents(path):
            for first in range(0, len(paragraphs), _PARAGRAPHS_OF_DOCUMENT):
                part = paragraphs[first : first + _PARAGRAPHS_OF_DOCUMENT]
                yield Document(f"{path}/{next(numbers)}", tuple(part))


def held_out_sentences(text: Path, most: int = 4) -> list[str]:
    """Return the beginnings of at most so many paragraphs, one per line, with the longest word of each masked."""
    sentences = []
    for line in text.read_text(encoding="utf-8").splitlines():
        words = line.split()[:25]
        plain = [word for word in words if word.isalpha()]
        if len(words) >= 8 and plain:
            words[words.index(max(plain, key=len))] = "<mask>"
            sentences.append(" ".join(words))
    return sentences[:: max(1, len(sentences) // most)][:most]


# The task

Examples = dict[str, list[tuple[str, str]]]


def share_of(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone, uniform over names."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


def place_of(document: Document) -> str:
    """Return the use of a document: "pretraining_valid", "test" (of the task) or "train" (of both)."""
    share = share_of(document.name)
    if share < PRETRAINING_VALID:
        return "pretraining_valid"
    return "test" if share < PRETRAINING_VALID + TASK_TEST else "train"


def swap_words(sentence: str) -> str | None:
    """Swap two neighboring words; None if there are none.

    The sentence determines the place. Its first and last word stay, and so do words with punctuation or digits, which
    would give the swap away.
    """
    words = sentence.split()
    pairs = [(words[place].lower(), words[place + 1].lower()) for place in range(len(words) - 1)]
    places = [
        place
        for place, (first, second) in enumerate(pairs[:-1])
        if place > 0 and first != second and first.isalpha() and second.isalpha()
    ]
    if not places:
        return None
    place = places[int(share_of(sentence) * len(places))]
    words[place : place + 2] = reversed(words[place : place + 2])
    return " ".join(words)


def make_task(documents: Iterable[Document]) -> Examples | None:
    """Return by split pairs of sentence and label, in random order; None if there are too few sentences.

    Half of the sentences are as they were written; in the others, two neighboring words are swapped.
    """
    found: dict[str, dict[str, str]] = {split: {} for split in MOST_EXAMPLES}
    for document in documents:
        place = place_of(document)
        if place in found:
            sentences = chain.from_iterable(map(_END_OF_SENTENCE.split, document.paragraphs))
            long_enough = (each for each in sentences if FEWEST_WORDS <= len(each.split()) <= MOST_WORDS)
            found[place].update((each, changed) for each in long_enough if (changed := swap_words(each)))
    found["test"] = {each: changed for each, changed in found["test"].items() if each not in found["train"]}
    if any(len(found[split]) < fewest for split, fewest in FEWEST_EXAMPLES.items()):
        return None
    return {split: _examples(found[split], most) for split, most in MOST_EXAMPLES.items()}


def _examples(swapped: dict[str, str], most: int) -> list[tuple[str, str]]:
    # The order of hashes is a random draw that needs no generator and no seed.
    drawn = sorted(swapped, key=share_of)[: min(most, len(swapped)) // 2 * 2]
    return [
        (swapped[each], SWAPPED) if number % 2 else (" ".join(each.split()), AS_WRITTEN)
        for number, each in enumerate(drawn)
    ]


def write_pretraining_text(documents: Iterable[Document], train: Path, valid: Path) -> None:
    """Write the text for ``maelm prepare corpus``: one paragraph per line, a blank line after each document."""
    found: dict[str, list[str]] = {"train": [], "pretraining_valid": []}
    for document in documents:
        place = place_of(document)
        if place in found:
            found[place].append("\n".join([*document.paragraphs, "", ""]))
    if not all(found.values()):
        raise ValueError(
            f"the text holds {sum(map(len, found.values()))} documents, too few to hold some out for validation: give "
            "more text, with a blank line between documents"
        )
    for place, path in (("train", train), ("pretraining_valid", valid)):
        path.write_text("".join(found[place]), encoding="utf-8")


def write_tables(task: Examples, folder: Path) -> list[Path]:
    """Write the tables for ``maelm prepare sentences``: the sentences to train on, and those to test."""
    paths = [folder / f"{split}.tsv" for split in ("train", "test")]
    for path in paths:
        lines = (f"{text}\t{label}\n" for text, label in task[path.stem])
        path.write_text("".join(lines), encoding="utf-8")
    return paths


def accuracy_of_counting(task: Examples) -> float:
    """Return the test accuracy in percent of logistic regression on weighted word counts, which knows no context."""
    classifier = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    classifier.fit(*zip(*task["train"]))
    return 100 * float(classifier.score(*zip(*task["test"])))
