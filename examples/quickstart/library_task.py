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
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from texts import STANDARD_LIBRARY, Document

from fairseq_maelm.corpus import FairseqEncoder, load_sentencepiece

# Shares of the documents. Documents outside of the task's classes are never held out for the task.
PRETRAINING_VALID, TASK_VALID, TASK_TEST = 0.02, 0.07, 0.13
MOST_CLASSES, FEWEST_CLASSES, FEWEST_WORDS, MOST_TOKENS = 8, 2, 10, 64
MOST_EXAMPLES = {"train": 300, "valid": 60, "test": 150}
FEWEST_EXAMPLES = {"train": 30, "valid": 5, "test": 15}
# How libraries are called apart from the name they are imported by.
_ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"), "networkx": ("nx",), "numpy": ("np",), "scipy": ("sp",),
    "sklearn": ("scikit-learn", "scikit"), "torch": ("pytorch", "aten"),
}  # fmt: skip


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
    """What a document is for: "pretraining_valid", "valid", "test" (of the task) or "train" (of both)."""
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
    """The texts of a document that can be classified: one a passage, without the paragraphs that name a class."""
    found = (" ".join(text for text in passage if not gives_away(text)) for passage in document.passages)
    return [text for text in found if len(text.split()) >= FEWEST_WORDS]


def make_task(documents: Sequence[Document], hide_names: bool) -> Task | None:
    """Choose classes and draw equally many examples of each; None if there are too few classes or examples.

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
        rich = [
            source
            for source in candidates
            if all(len(pools[split][source]) >= fewest for split, fewest in FEWEST_EXAMPLES.items())
        ]
        if rich == candidates:
            return Task(tuple(sorted(candidates)), _balanced(pools, sorted(candidates)))
        candidates = rich
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
    """Write the text for ``maelm prepare corpus``: a paragraph a line, a blank line after each document.

    Raises:
        ValueError: no document is held out for validation, or none is left to train on.
    """
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


def binarize_task(task: Task, data: Path, output: Path) -> None:
    """Write the task in the layout of fairseq's ``sentence_prediction``: input0/ and label/ with their dictionaries.

    Args:
        task: with all three splits.
        data: folder of ``maelm prepare corpus``; its vocabulary is used and copied, so that the pretrained model fits.
        output: folder to write.
    """
    inputs, labels, dictionary = output / "input0", output / "label", Dictionary()
    for folder in (inputs, labels):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (inputs / name).write_bytes((data / name).read_bytes())
    for name in task.classes:
        dictionary.add_symbol(name.replace(" ", "_"))
    dictionary.save(str(labels / "dict.txt"))
    encoder = FairseqEncoder(load_sentencepiece(data / "sentencepiece.bpe.model"))
    for split, examples in task.examples.items():
        sequences = encoder.encode([text for text, _ in examples])
        # The last token is </s>; <s> is put in front by the task (--init-token 0).
        shortened = [np.append(tokens[:-1][: MOST_TOKENS - 2], tokens[-1]) for tokens in sequences]
        _write_split(inputs / split, shortened, encoder.dtype)
        numbers = [dictionary.nspecial + task.classes.index(label) for _, label in examples]
        _write_split(labels / split, [np.array([number, dictionary.eos()]) for number in numbers], np.uint16)


def _write_split(prefix: Path, sequences: Iterable[np.ndarray], dtype: type) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sequence in sequences:
        builder.add_item(torch.from_numpy(sequence.astype(np.int64)))
    builder.finalize(f"{prefix}.idx")
