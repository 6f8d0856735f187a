#!/usr/bin/env python3
"""Turn tables of sentences and labels into the folder that fairseq's task sentence_prediction reads.

A table is UTF-8 text without a header, one example a line, columns separated by tabs: a sentence and its label, or two
sentences and their label. Labels are names of classes or, with --regression, numbers.

    python examples/finetuning/prepare_sentences.py --data DATA --train train.tsv --valid valid.tsv --output TASK

DATA is the folder of `maelm prepare` that the checkpoint was pretrained on: sentences get its vocabulary.
"""

import argparse
import itertools
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq.data import Dictionary, indexed_dataset
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.corpus import CorpusError, FairseqEncoder, clean_text, load_sentencepiece

SENTENCEPIECE_MODEL = "sentencepiece.bpe.model"
DICTIONARY = "dict.txt"
CHUNK = 10_000


class Example(NamedTuple):
    """A line of a table.

    Attributes:
        place: file and line, for error messages.
        sentences: one or two, cleaned.
        label: as written.
    """

    place: str
    sentences: tuple[str, ...]
    label: str


def read_table(path: Path) -> Iterator[Example]:
    """Yield the examples of a table.

    Raises:
        CorpusError: names file and line of anything that is no example.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            try:
                cells = line.decode("utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError as error:
                raise CorpusError(f"{place} is not UTF-8 ({error.reason} at byte {error.start})") from error
            if len(cells) not in (2, 3):
                raise CorpusError(
                    f"{place} has {len(cells)} columns: it must be 'sentence TAB label' or 'sentence TAB sentence TAB "
                    "label'"
                )
            sentences = tuple(clean_text(cell) for cell in cells[:-1])
            if not all(sentences):
                raise CorpusError(f"{place} has an empty sentence")
            if not cells[-1].strip():
                raise CorpusError(f"{place} has no label")
            yield Example(place, sentences, cells[-1].strip())


def label_dictionary(train: Path) -> Dictionary:
    """Return the labels of the training table in alphabetical order, which is the order of the classes."""
    labels = sorted({example.label for example in read_table(train)})
    if len(labels) < 2:
        raise CorpusError(f"{train} has {len(labels)} different labels; classification needs two at least")
    dictionary = Dictionary()
    for label in labels:
        if label in dictionary:
            raise CorpusError(f"the label {label!r} is spelled like one of fairseq's special symbols: rename it")
        dictionary.add_symbol(label)
    return dictionary


def checked_number(example: Example) -> str:
    """Return the label of a regression as text that fairseq reads."""
    try:
        number = float(example.label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CorpusError(f"{example.place} has the label {example.label!r}: --regression needs a finite number")
    return repr(number)


class SplitWriter:
    """Writes one split.

    Args:
        folder: of the task.
        split: "train", "valid" or "test".
        columns: sentences of an example, 1 or 2.
        encoder: turns sentences into tokens.
        labels: the classes, or None for regression.
    """

    def __init__(
        self, folder: Path, split: str, columns: int, encoder: FairseqEncoder, labels: Dictionary | None
    ) -> None:
        self.folder, self.split, self.columns = folder, split, columns
        self.encoder, self.labels = encoder, labels
        self.inputs = [self._builder(f"input{number}", encoder.dictionary_size) for number in range(columns)]
        self.classes = None if labels is None else self._builder("label", len(labels))
        self.numbers: list[str] = []

    def _builder(self, name: str, symbols: int) -> indexed_dataset.MMapIndexedDatasetBuilder:
        (self.folder / name).mkdir(exist_ok=True)
        return indexed_dataset.make_builder(f"{self.folder / name / self.split}.bin", impl="mmap", vocab_size=symbols)

    def add(self, examples: list[Example]) -> None:
        """Encode and store examples.

        Raises:
            CorpusError: another number of columns than in the first table, an unknown label, or not a number.
        """
        for example in examples:
            if len(example.sentences) != self.columns:
                raise CorpusError(
                    f"{example.place} has {len(example.sentences)} sentences, and the training table {self.columns}"
                )
            self._add_label(example)
        for number, builder in enumerate(self.inputs):
            for tokens in self.encoder.encode([example.sentences[number] for example in examples]):
                builder.add_item(torch.from_numpy(tokens.astype("int64")))

    def _add_label(self, example: Example) -> None:
        if self.labels is None or self.classes is None:
            self.numbers.append(checked_number(example))
            return
        if example.label not in self.labels:
            raise CorpusError(f"{example.place} has the label {example.label!r}, which no training example has")
        self.classes.add_item(torch.tensor([self.labels.index(example.label), self.labels.eos()]))

    def close(self) -> None:
        """Write what belongs at the end."""
        named = [(f"input{number}", builder) for number, builder in enumerate(self.inputs)]
        if self.classes is not None:
            named.append(("label", self.classes))
        else:
            (self.folder / "label").mkdir(exist_ok=True)
            lines = "".join(f"{number}\n" for number in self.numbers)
            (self.folder / "label" / f"{self.split}.label").write_text(lines, encoding="ascii")
        for name, builder in named:
            builder.finalize(f"{self.folder / name / self.split}.idx")


def prepare(data: Path, tables: dict[str, Path], output: Path, regression: bool) -> None:
    """Write the task's folder; it gets its name only when it is complete.

    Raises:
        CorpusError: something is not as it must be; the message says what.
        OSError: a file is missing or cannot be written.
    """
    if output.exists():
        raise CorpusError(f"{output} exists already: name another folder, or remove it first")
    encoder = FairseqEncoder(load_sentencepiece(data / SENTENCEPIECE_MODEL))
    labels = None if regression else label_dictionary(tables["train"])
    first = next(read_table(tables["train"]), None)
    if first is None:
        raise CorpusError(f"{tables['train']} is empty")
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split, table in tables.items():
        writer = SplitWriter(partial, split, len(first.sentences), encoder, labels)
        progress = tqdm(read_table(table), desc=split, unit=" examples", mininterval=1)
        count = 0
        while examples := list(itertools.islice(progress, CHUNK)):
            writer.add(examples)
            count += len(examples)
        if not count:
            raise CorpusError(f"{table} is empty")
        writer.close()
    for number in range(len(first.sentences)):
        shutil.copyfile(data / DICTIONARY, partial / f"input{number}" / DICTIONARY)
    shutil.copyfile(data / SENTENCEPIECE_MODEL, partial / "input0" / SENTENCEPIECE_MODEL)
    if labels is not None:
        labels.save(str(partial / "label" / DICTIONARY))
    os.replace(partial, output)


def main() -> None:
    """Read the command line and prepare the task."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="A table: one example a line, 'sentence TAB [sentence TAB] label'."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of `maelm prepare`, for the vocabulary")
    parser.add_argument("--train", type=Path, required=True, metavar="TABLE")
    parser.add_argument("--valid", type=Path, required=True, metavar="TABLE")
    parser.add_argument("--test", type=Path, metavar="TABLE")
    parser.add_argument("--output", type=Path, required=True, metavar="TASK", help="the new folder")
    parser.add_argument("--regression", action="store_true", help="labels are numbers")
    args = parser.parse_args()
    tables = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    try:
        prepare(args.data, tables, args.output, args.regression)
    except (CorpusError, OSError) as error:
        raise SystemExit(f"prepare_sentences.py: error: {error}") from error


if __name__ == "__main__":
    main()
