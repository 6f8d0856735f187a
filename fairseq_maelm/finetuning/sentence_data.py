"""The folder of labeled sentences, which fairseq's own task sentence_prediction can read too.

FOLDER/input0/{train,valid,...}.{bin,idx}  dict.txt  sentencepiece.bpe.model
FOLDER/input1/...                                     the second sentences of pairs
FOLDER/label/{train,valid,...}.{bin,idx}  dict.txt    classes, in the order of the dictionary; or
FOLDER/label/{train,valid,...}.label                  numbers, one per line
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, TextEncoder

HEAD = "sentence_classification_head"
"""Name of the head that scores sentences; fairseq's own fine-tuning uses the same name."""

_CHUNK = 10_000

_Example = TypeVar("_Example")


def label_dictionary(labels: Iterable[str]) -> Dictionary:
    """Make the dictionary of labels; their order is that of the classes."""
    dictionary = Dictionary()
    for label in labels:
        if label in dictionary:
            raise CorpusError(f"the label {label!r} is the name of one of fairseq's special symbols: rename it")
        dictionary.add_symbol(label)
    return dictionary


def copy_vocabulary(files: Iterable[Path], folder: Path, sentences: int) -> None:
    """Copy a vocabulary's files to where fairseq and the hub interface look for them."""
    for path in files:
        shutil.copyfile(path, folder / "input0" / path.name)
    for number in range(1, sentences):
        shutil.copyfile(folder / "input0" / DICTIONARY_FILE, folder / f"input{number}" / DICTIONARY_FILE)


def example_lengths(folder: Path, split: str) -> NDArray[np.int64]:
    """Return the number of tokens <int64>[n] of each example, ``<s> a </s>`` or ``<s> a </s> </s> b </s>``."""
    prefixes = [folder / name / split for name in ("input0", "input1") if (folder / name / f"{split}.idx").is_file()]
    # Each sentence is stored with </s>; the symbol in front of it is not stored.
    lengths = [read_index(str(prefix))[0].astype(np.int64) + 1 for prefix in prefixes]
    return np.sum(lengths, axis=0, dtype=np.int64)


def encoded(
    examples: Iterable[_Example], texts: Callable[[_Example], Sequence[str]], encoder: TextEncoder, description: str
) -> Iterator[tuple[_Example, list[NDArray[np.unsignedinteger]]]]:
    """Yield examples with their texts as tokens that end in </s>, and show a progress bar with the description.

    ``texts`` returns the texts of an example, the same number for every example.
    """
    # One iterator for all chunks, because a second iterator over the bar would lose examples.
    progress = iter(tqdm(examples, desc=description, unit=" examples", mininterval=1))
    while chunk := list(itertools.islice(progress, _CHUNK)):
        columns = [encoder.encode(column) for column in zip(*map(texts, chunk))]
        yield from ((example, list(own)) for example, own in zip(chunk, zip(*columns)))


class SplitWriter:
    """A writer of one split.

    Args:
        folder: the task's folder.
        split: "train", "valid" or "test", possibly followed by a number.
        sentences: sentences of an example, 1 or 2.
        dictionary_size: symbols of the dictionary without <mask>; decides the integer type of stored tokens.
        labels: the classes; None for numbers.
        labeled: whether the split has labels; test sets may lack them.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        sentences: int,
        dictionary_size: int,
        labels: Dictionary | None,
        labeled: bool = True,
    ) -> None:
        self._folder, self._split = folder, split
        self._labels, self._labeled = labels, labeled
        self._inputs = [self._builder(f"input{number}", dictionary_size) for number in range(sentences)]
        self._classes = self._builder("label", len(labels)) if labeled and labels is not None else None
        self._numbers: list[str] = []

    def _builder(self, name: str, symbols: int) -> Any:
        (self._folder / name).mkdir(exist_ok=True)
        return make_builder(f"{self._folder / name / self._split}.bin", impl="mmap", vocab_size=symbols)

    def add(self, sentences: Sequence[NDArray[np.unsignedinteger]], label: str | None) -> None:
        """Store an example.

        Args:
            sentences: <uint16 or uint32>[tokens] each, with </s> at the end.
            label: one of the classes, or the text of a number; None in a split without labels.
        """
        for builder, tokens in zip(self._inputs, sentences, strict=True):
            builder.add_item(torch.from_numpy(tokens.astype("int64")))
        if self._classes is not None and self._labels is not None:
            self._classes.add_item(torch.tensor([self._labels.index(label), self._labels.eos()]))
        elif self._labeled and label is not None:
            self._numbers.append(label)

    def close(self) -> None:
        """Write the indices, and the numbers of a regression."""
        for number, builder in enumerate(self._inputs):
            builder.finalize(f"{self._folder / f'input{number}' / self._split}.idx")
        if self._classes is not None:
            self._classes.finalize(f"{self._folder / 'label' / self._split}.idx")
        if self._labeled and self._labels is None:
            (self._folder / "label").mkdir(exist_ok=True)
            lines = "".join(f"{number}\n" for number in self._numbers)
            (self._folder / "label" / f"{self._split}.label").write_text(lines, encoding="ascii")
