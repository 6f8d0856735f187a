"""The folder of labeled sentences, which fairseq's own task sentence_prediction reads too.

FOLDER/input0/{train,valid,...}.{bin,idx}  dict.txt  sentencepiece.bpe.model
FOLDER/input1/...                                     of pairs
FOLDER/label/{train,valid,...}.{bin,idx}  dict.txt    classes, in the order of the dictionary; or
FOLDER/label/{train,valid,...}.label                  numbers, one a line
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

from fairseq_maelm.data.stored import read_index
from fairseq_maelm.files import CorpusError
from fairseq_maelm.text.imported import TextEncoder, vocabulary_files
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

HEAD = "sentence_classification_head"
"""Name of the head that scores sentences; fairseq's own fine-tuning uses the same name."""

_CHUNK = 10_000

_Example = TypeVar("_Example")


def label_dictionary(labels: Iterable[str]) -> Dictionary:
    """Make the dictionary of labels, which are classes in the given order."""
    dictionary = Dictionary()
    for label in labels:
        if label in dictionary:
            raise CorpusError(f"the label {label!r} is spelled like one of fairseq's special symbols: rename it")
        dictionary.add_symbol(label)
    return dictionary


def copy_vocabulary(vocabulary: Path, folder: Path, sentences: int) -> None:
    """Copy a vocabulary to where fairseq and the hub interface look for it."""
    for number in range(sentences):
        shutil.copyfile(vocabulary / DICTIONARY_FILE, folder / f"input{number}" / DICTIONARY_FILE)
    for path in vocabulary_files(vocabulary):
        shutil.copyfile(path, folder / "input0" / path.name)


def example_lengths(folder: Path, split: str) -> NDArray[np.int64]:
    """Return the tokens <int64>[n] of each example of a split as ``<s> a </s>`` or ``<s> a </s> </s> b </s>``."""
    lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    for prefix in (folder / f"input{number}" / split for number in range(2)):
        if Path(f"{prefix}.idx").is_file():
            # The end symbols are stored; one more symbol precedes each sentence.
            own = read_index(str(prefix))[0].astype(np.int64) + 1
            lengths = lengths + own if len(lengths) else own
    return lengths


def encoded(
    examples: Iterable[_Example], texts: Callable[[_Example], Sequence[str]], encoder: TextEncoder, description: str
) -> Iterator[tuple[_Example, list[NDArray[np.unsignedinteger]]]]:
    """Yield examples with their texts as tokens that end with </s>, and show a progress bar with the description.

    ``texts`` returns the texts of an example, equally many of each; the encoder gets thousands of them at a time.
    """
    # One iterator for all chunks: a bar that is asked for another one ends the examples early.
    progress = iter(tqdm(examples, desc=description, unit=" examples", mininterval=1))
    while chunk := list(itertools.islice(progress, _CHUNK)):
        columns = [encoder.encode(column) for column in zip(*map(texts, chunk))]
        yield from ((example, list(own)) for example, own in zip(chunk, zip(*columns)))


class SplitWriter:
    """Writes one split.

    Args:
        folder: of the task.
        split: "train", "valid", "test", perhaps with a number behind.
        sentences: of an example, 1 or 2.
        dictionary_size: symbols of the dictionary without <mask>, which decides how tokens are stored.
        labels: the classes, or None for numbers.
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
        names = [f"input{number}" for number in range(sentences)]
        self._builders = {name: self._builder(name, dictionary_size) for name in names}
        self._inputs = list(self._builders.values())
        if labeled and labels is not None:
            self._builders["label"] = self._builder("label", len(labels))
        self._numbers: list[str] = []

    def _builder(self, name: str, symbols: int) -> Any:
        (self._folder / name).mkdir(exist_ok=True)
        return make_builder(f"{self._folder / name / self._split}.bin", impl="mmap", vocab_size=symbols)

    def add(self, sentences: Sequence[NDArray[np.unsignedinteger]], label: str | None) -> None:
        """Store an example.

        Args:
            sentences: <uint16 or uint32>[tokens] each, with </s> at the end.
            label: one of the classes, or a number as text that ``float`` reads; None where the split has no labels.
        """
        for builder, tokens in zip(self._inputs, sentences, strict=True):
            builder.add_item(torch.from_numpy(tokens.astype("int64")))
        if self._labeled and label is not None:
            if self._labels is None:
                self._numbers.append(label)
            else:
                self._builders["label"].add_item(torch.tensor([self._labels.index(label), self._labels.eos()]))

    def close(self) -> None:
        """Write the indices, and the numbers of a regression."""
        for name, builder in self._builders.items():
            builder.finalize(f"{self._folder / name / self._split}.idx")
        if self._labeled and self._labels is None:
            (self._folder / "label").mkdir(exist_ok=True)
            lines = "".join(f"{number}\n" for number in self._numbers)
            (self._folder / "label" / f"{self._split}.label").write_text(lines, encoding="ascii")
