"""The quickstart's text, docstrings or the user's files, and its task: which word is missing?

Docstrings of the standard library and installed packages are read with ``ast``; nothing is imported or run. Whole
documents are held out: their text is used to validate pretraining and to test on the task, and nowhere trained on.
"""

import ast
import hashlib
import json
import multiprocessing
import os
import re
import sys
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from fairseq_maelm.corpus import read_documents
from fairseq_maelm.text.offsets import WORD_START

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
# What makes a document of a long text of the user's.
_PARAGRAPHS_OF_DOCUMENT = 50
HELD_OUT = 0.02
# The task: so many frequent words, and so many words on each side of a gap, at least three of them.
MOST_WORDS, SIDE, NEAREST = 10, 15, 3
# Examples of each word.
MOST_EXAMPLES = {"train": 200, "valid": 100}
FEWEST_EXAMPLES = {"train": 30, "valid": 5}

# The text of a module or of a part of the user's file: a unique name, and paragraphs.
Document = tuple[str, Sequence[str]]
Example = tuple[str, str, str]  # the text before the gap, the text after it, the word


# Docstrings


def paragraphs_of(docstring: str) -> list[str]:
    """Turn a docstring into paragraphs of English, without examples, code, formulas, tables, headings and markup."""
    paragraphs = []
    for block in "\n".join(_prose_lines(docstring)).split("\n\n"):
        text = _FOOTNOTE.sub("", _ROLE.sub(r"\1", " ".join(block.split()).replace("``", "`")))
        text = " ".join(_STRONG.sub(lambda found: found[1] or found[2], text).replace("`", "").split())
        letters = len(text) - len(_NEITHER_LETTER_NOR_SPACE.findall(text))
        if len(text.split()) >= 5 and letters >= 0.8 * len(text):
            paragraphs.append(text)
    return paragraphs


def _prose_lines(docstring: str) -> Iterator[str]:
    """Yield the lines outside of code, stripped; an empty one ends a paragraph."""
    lines = docstring.expandtabs().splitlines()
    code_deeper_than: int | None = None
    in_fence = in_doctest = False
    for raw, following in zip(lines, [*(line.strip() for line in lines[1:]), ""]):
        line, indent = raw.strip(), len(raw) - len(raw.lstrip())
        is_fence = bool(_FENCE.match(line))
        in_fence ^= is_fence
        if not (in_fence or is_fence):
            if code_deeper_than is not None and line and indent <= code_deeper_than:
                code_deeper_than = None
            in_doctest = bool(line) and (in_doctest or line.startswith(">>>"))
        if in_fence or is_fence or in_doctest or code_deeper_than is not None:
            line = ""
        elif directive := _DIRECTIVE.match(line):
            yield ""
            line = line[directive.end() :].strip() if directive[1] in _PROSE_DIRECTIVES else ""
            code_deeper_than = None if directive[1] in _PROSE_DIRECTIVES else indent
        else:
            if line.endswith("::"):
                code_deeper_than, line = indent, line[:-1]
            is_heading = len(following) >= min(len(line), 3) and _UNDERLINE.match(following)
            line = "" if is_heading or _UNDERLINE.match(line) or _LAYOUT.match(line) else line
        yield line


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
    """List name and file of every module that can be imported from source, in a fixed order, without this package's."""
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    found = []
    for root in (Path(sysconfig.get_path("stdlib")).resolve(), *sorted(installed)):
        paths = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
            paths += [Path(folder, file) for file in files if file.endswith(".py")]
        found += sorted((".".join(path.relative_to(root).with_suffix("").parts), path) for path in paths)
    return [(name, path) for name, path in found if name.partition(".")[0] != "fairseq_maelm"]


def read_module(module: tuple[str, Path]) -> Document:
    """Read the docstrings of one of ``installed_modules``; a file that cannot be read has none."""
    name, path = module
    try:
        source_code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source_code = ""
    return name, [each for text in docstrings_of(source_code) for each in paragraphs_of(text)]


def installed_docstrings() -> Iterator[Document]:
    """Yield the docstrings of the standard library and of all installed packages, one document a module.

    A paragraph that came before is dropped, for libraries copy docstrings, which would leak into held-out text.
    """
    modules, seen = installed_modules(), set[str]()
    with multiprocessing.Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        documents = pool.imap(read_module, modules, chunksize=32)
        for name, paragraphs in tqdm(documents, "reading docstrings", len(modules), unit=" modules"):
            fresh = [text for text in dict.fromkeys(paragraphs) if text not in seen]
            seen.update(fresh)
            if fresh:
                yield name, fresh


# Any text


def documents_of_files(paths: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of the user's files, long ones cut so that some text of every file can be held out."""
    for place, path in enumerate(paths):
        number = 0
        for paragraphs in read_documents(path):
            for first in range(0, len(paragraphs), _PARAGRAPHS_OF_DOCUMENT):
                number += 1
                yield f"{place} {number}", paragraphs[first : first + _PARAGRAPHS_OF_DOCUMENT]


def held_out_sentences(text: Path, fits: Callable[[str], bool], count: int = 4) -> list[str]:
    """Return the beginnings of at most ``count`` paragraphs, one per line, with the longest word of each masked.

    ``fits`` tells whether the model has positions for a text; longer beginnings are truncated.
    """
    sentences = []
    for line in text.read_text(encoding="utf-8").splitlines():
        words = line.split()[:25]
        while len(words) >= 8 and not fits(" ".join(words)):
            words.pop()
        plain = [word for word in words if word.isalpha()]
        if len(words) >= 8 and plain:
            words[words.index(max(plain, key=len))] = "<mask>"
            sentences.append(" ".join(words))
    return sentences[:: max(1, len(sentences) // count)][:count]


def share_of(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone, uniform over names."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


def write_text(documents: Iterable[Document], folder: Path) -> tuple[int, int]:
    """Divide documents into train.txt and valid.txt, and return their number and that of their characters.

    The files are for ``maelm prepare corpus``: one paragraph per line, a blank line after each document. Too few
    documents to hold some out are a ValueError.
    """
    texts: dict[str, list[str]] = {"train": [], "valid": []}
    for name, paragraphs in documents:
        texts["valid" if share_of(name) < HELD_OUT else "train"].append("\n".join(paragraphs) + "\n")
    number, characters = sum(map(len, texts.values())), sum(len(text) for own in texts.values() for text in own)
    if not all(texts.values()):
        raise ValueError(
            f"the text holds {number} documents, too few to hold some out for validation: give more text, with a blank "
            "line between documents"
        )
    folder.mkdir(exist_ok=True)
    for split, own in texts.items():
        (folder / f"{split}.txt").write_text("".join(f"{text}\n" for text in own), encoding="utf-8")
    return number, characters


# The task


def examples_of(paragraph: str, words: Container[str]) -> Iterator[Example]:
    """Cut a paragraph into pieces and yield one of the gaps that each can have."""
    own = paragraph.split()
    for first in range(0, len(own), 2 * SIDE + 1):
        piece = own[first : first + 2 * SIDE + 1]
        gaps = [gap for gap in range(NEAREST, len(piece) - NEAREST) if piece[gap] in words]
        if gaps:
            gap = gaps[int(share_of(" ".join(piece)) * len(gaps))]
            yield " ".join(piece[:gap]), " ".join(piece[gap + 1 :]), piece[gap]


def make_task(text: Path, pieces: Container[str]) -> dict[str, list[Example]]:
    """Draw equally many gaps of each frequent word from train.txt and valid.txt; nothing if there are too few.

    The words are lower case, and one piece of the vocabulary.
    """
    paragraphs = {split: (text / f"{split}.txt").read_text(encoding="utf-8").splitlines() for split in MOST_EXAMPLES}
    counts = Counter(word for each in paragraphs["train"] for word in each.split() if word.isalpha() and word.islower())
    words = [word for word, _ in counts.most_common() if WORD_START + word in pieces][:MOST_WORDS]
    pools: dict[str, dict[str, set[Example]]] = {split: defaultdict(set) for split in MOST_EXAMPLES}
    for split, own in paragraphs.items():
        for example in (example for paragraph in own for example in examples_of(paragraph, set(words))):
            pools[split][example[2]].add(example)
    words = [word for word in words if all(len(pools[split][word]) >= n for split, n in FEWEST_EXAMPLES.items())]
    if len(words) < 2:
        return {}
    task = {}
    for split, most in MOST_EXAMPLES.items():
        count = min(most, *(len(pools[split][word]) for word in words))
        # The order of hashes is a random draw that needs no generator and no seed.
        drawn = [example for word in words for example in sorted(pools[split][word], key=_order)[:count]]
        task[split] = sorted(drawn, key=_order)
    return task


def _order(example: Example) -> float:
    return share_of("\t".join(example))


def write_task(task: dict[str, list[Example]], folder: Path) -> list[str]:
    """Write the tables and the prompt of the task ``maelm_prompt``, and return the words."""
    folder.mkdir(exist_ok=True)
    for split, examples in task.items():
        lines = "".join("\t".join(example) + "\n" for example in examples)
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
    words = sorted({word for _, _, word in task["train"]})
    label_words = {word: word for word in words}
    prompt = {"template": "*cls**sent_0**mask**+sent_1**sep*", "label_words": label_words, "max_length": 64}
    (folder / "prompt.json").write_text(json.dumps(prompt, indent=1, ensure_ascii=False), encoding="utf-8")
    return words


if __name__ == "__main__":
    output, *given = map(Path, sys.argv[1:])
    count, length = write_text(documents_of_files(given) if given else installed_docstrings(), output)
    print(json.dumps({"characters": length, "documents": count}))
