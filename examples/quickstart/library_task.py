"""Dividing documents between pretraining and a classification task: which library, or which file, is a text from?

Whole documents are divided. What validates pretraining, and what validates and tests the task, is in neither the text
nor the labeled examples that anything is trained on.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from docstrings import STANDARD_LIBRARY, Document
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_maelm.corpus import FairseqEncoder, load_sentencepiece, read_documents

# Shares of the documents. Documents outside of the task's classes are never held out for the task.
PRETRAINING_VALID = 0.02
TASK_VALID = 0.07
TASK_TEST = 0.13

MOST_CLASSES = 8
FEWEST_CLASSES = 2
MOST_EXAMPLES = {"train": 300, "valid": 60, "test": 150}
FEWEST_EXAMPLES = {"train": 30, "valid": 5, "test": 15}
FEWEST_WORDS = 10
MOST_TOKENS = 64

# How libraries are called apart from the name they are imported by.
_ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"),
    "networkx": ("nx",),
    "numpy": ("np",),
    "scipy": ("sp",),
    "sklearn": ("scikit-learn", "scikit"),
    "torch": ("pytorch", "aten"),
}

# User's text: what makes a document of a long text, and an example of its short paragraphs.
_PARAGRAPHS_OF_DOCUMENT = 50
_WORDS_OF_PASSAGE = 50


@dataclass(frozen=True)
class Task:
    """A balanced classification task.

    Attributes:
        classes: the sources, sorted.
        examples: split ("train", "valid", "test") -> pairs of text and class, in random order.
    """

    classes: tuple[str, ...]
    examples: dict[str, list[tuple[str, str]]]


def share_of(name: str) -> float:
    """A number in [0, 1) that depends on the name alone, uniform over names: who else is there changes no place."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


def place_of(document: Document, classes: Sequence[str]) -> str:
    """Says what a document is for: "pretraining_valid", "valid", "test" (of the task) or "train" (of both)."""
    share = share_of(f"{document.source}/{document.name}")
    if share < PRETRAINING_VALID:
        return "pretraining_valid"
    if document.source in classes and share < PRETRAINING_VALID + TASK_VALID:
        return "valid"
    if document.source in classes and share < PRETRAINING_VALID + TASK_VALID + TASK_TEST:
        return "test"
    return "train"


def name_filter(sources: Iterable[str]) -> Callable[[str], bool]:
    """Makes a function that tells whether a paragraph names one of the libraries, which would give the answer away."""
    names = set()
    for source in sources:
        if source != STANDARD_LIBRARY:
            names.update([source.lower(), *_ALIASES.get(source, ())])
    if not names:
        return lambda paragraph: False
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(map(re.escape, sorted(names)))})(?![a-z])")
    return lambda paragraph: pattern.search(paragraph.lower()) is not None


def examples_of(document: Document, gives_away: Callable[[str], bool]) -> list[str]:
    """The texts of a document that can be classified: one a passage, without the paragraphs that name a class."""
    texts = (" ".join(text for text in passage if not gives_away(text)) for passage in document.passages)
    return [text for text in texts if len(text.split()) >= FEWEST_WORDS]


def make_task(documents: Sequence[Document], hide_names: bool) -> Task | None:
    """Chooses classes and draws equally many examples of each; None if there are too few classes or examples.

    Args:
        documents: all of them.
        hide_names: leave out paragraphs that name one of the sources.
    """
    passages: Counter[str] = Counter()
    for document in documents:
        passages[document.source] += len(document.passages)
    candidates = [source for source, _ in passages.most_common(MOST_CLASSES)]
    while len(candidates) >= FEWEST_CLASSES:
        pools = _pools(documents, candidates, hide_names)
        poor = [
            source
            for source in candidates
            if any(len(pools[split][source]) < fewest for split, fewest in FEWEST_EXAMPLES.items())
        ]
        if not poor:
            return Task(tuple(sorted(candidates)), _balanced(pools, sorted(candidates)))
        candidates = [source for source in candidates if source not in poor]
    return None


def _pools(documents: Sequence[Document], classes: list[str], hide_names: bool) -> dict[str, dict[str, list[str]]]:
    gives_away = name_filter(classes if hide_names else [])
    pools: dict[str, dict[str, list[str]]] = {split: defaultdict(list) for split in MOST_EXAMPLES}
    for document in documents:
        place = place_of(document, classes)
        if document.source in classes and place in pools:
            pools[place][document.source].extend(examples_of(document, gives_away))
    return pools


def _balanced(pools: dict[str, dict[str, list[str]]], classes: list[str]) -> dict[str, list[tuple[str, str]]]:
    examples = {}
    for split, most in MOST_EXAMPLES.items():
        count = min(most, *(len(pools[split][source]) for source in classes))
        # The order of hashes is a random draw that needs no generator and no seed.
        drawn = [(text, source) for source in classes for text in sorted(pools[split][source], key=share_of)[:count]]
        examples[split] = sorted(drawn, key=lambda example: share_of(example[0]))
    return examples


def write_pretraining_text(documents: Iterable[Document], classes: Sequence[str], train: Path, valid: Path) -> None:
    """Writes the text for ``maelm prepare``: a paragraph a line, a blank line after each document.

    Raises:
        ValueError: no document is held out for validation, or none is left to train on.
    """
    written = {"train": 0, "pretraining_valid": 0}
    with open(train, "w", encoding="utf-8") as train_file, open(valid, "w", encoding="utf-8") as valid_file:
        files = {"train": train_file, "pretraining_valid": valid_file}
        for document in documents:
            place = place_of(document, classes)
            if place in files:
                written[place] += 1
                for passage in document.passages:
                    files[place].writelines(f"{paragraph}\n" for paragraph in passage)
                files[place].write("\n")
    if not all(written.values()):
        raise ValueError(
            f"the text holds {sum(written.values())} documents, too few to hold some out for validation: give more "
            "text, with a blank line between documents"
        )


def documents_of_files(paths: Sequence[Path]) -> Iterable[Document]:
    """Yields the documents of the user's files (plain text, .gz, .xz, .jsonl); the source is the file's name.

    Long documents are cut, so that some text of a file without blank lines can be held out.
    """
    for path, source in zip(paths, _unique_names(paths)):
        number = 0
        for paragraphs in read_documents(path):
            for first in range(0, len(paragraphs), _PARAGRAPHS_OF_DOCUMENT):
                number += 1
                passages = _passages(paragraphs[first : first + _PARAGRAPHS_OF_DOCUMENT])
                yield Document(source, str(number), tuple(passages))


def _unique_names(paths: Sequence[Path]) -> list[str]:
    names = [path.name.split(".")[0] or path.name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths)]


def _passages(paragraphs: Sequence[str]) -> list[tuple[str, ...]]:
    passages: list[tuple[str, ...]] = []
    current: list[str] = []
    for paragraph in paragraphs:
        current.append(paragraph)
        if sum(len(text.split()) for text in current) >= _WORDS_OF_PASSAGE:
            passages.append(tuple(current))
            current = []
    if current:
        passages.append(tuple(current))
    return passages


def binarize_task(task: Task, data: Path, output: Path) -> None:
    """Writes the task in the layout of fairseq's ``sentence_prediction``: input0/ and label/ with their dictionaries.

    Args:
        task: with all three splits.
        data: folder of ``maelm prepare``, whose vocabulary is used and copied, so that the pretrained model fits.
        output: folder to write, for example ``task``.
    """
    texts, labels = output / "input0", output / "label"
    for folder in (texts, labels):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (texts / name).write_bytes((data / name).read_bytes())
    encoder = FairseqEncoder(load_sentencepiece(data / "sentencepiece.bpe.model"))
    label_dictionary = Dictionary()
    for name in task.classes:
        label_dictionary.add_symbol(name.replace(" ", "_"))
    label_dictionary.save(str(labels / "dict.txt"))
    for split, examples in task.examples.items():
        sequences = encoder.encode([text for text, _ in examples])
        # The last token is </s>; <s> is put in front by the task (--init-token 0).
        shortened = [np.append(tokens[:-1][: MOST_TOKENS - 2], tokens[-1]) for tokens in sequences]
        _write_split(texts / split, shortened, encoder.dtype)
        numbers = [label_dictionary.nspecial + task.classes.index(label) for _, label in examples]
        ends = [np.array([number, label_dictionary.eos()]) for number in numbers]
        _write_split(labels / split, ends, np.uint16)


def _write_split(prefix: Path, sequences: Iterable[np.ndarray], dtype: type) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sequence in sequences:
        builder.add_item(torch.from_numpy(sequence.astype(np.int64)))
    builder.finalize(f"{prefix}.idx")
