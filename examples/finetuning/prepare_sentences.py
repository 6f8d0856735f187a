#!/usr/bin/env python3
"""Turn tables of sentences and labels into the folder that fairseq's task sentence_prediction reads.

A table is UTF-8 text without a header, one example a line, columns separated by tabs: a sentence and its label, or two
sentences and their label. Labels are names of classes or, with --regression, numbers. A header is refused: a first line
of column names, or one whose label no other line has while every other label is on several lines.

    python examples/finetuning/prepare_sentences.py --data DATA --train train.tsv --valid valid.tsv --output TASK

DATA is the folder of `maelm prepare` that the checkpoint was pretrained on: sentences get its vocabulary.
"""

import argparse
import itertools
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq.data import Dictionary
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.corpus import CorpusError, clean_text
from fairseq_maelm.corpus.header import header_reason
from fairseq_maelm.finetuning.sentence_data import SplitWriter, copy_vocabulary, label_dictionary
from fairseq_maelm.text.imported import TextEncoder, open_encoder
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

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


def labels_of(train: Path) -> Dictionary:
    """Return the labels of the training table in alphabetical order, which is the order of the classes.

    Raises:
        CorpusError: there are fewer than two, or the first line looks like a header.
    """
    counts = Counter(example.label for example in read_table(train))
    if len(counts) < 2:
        raise CorpusError(f"{train} has {len(counts)} different labels; classification needs two at least")
    first = next(read_table(train))
    if reason := header_reason(first.sentences, first.label, counts):
        raise CorpusError(
            f"{first.place} looks like a header: {reason}. Tables have none: remove the line, or move it down if it is "
            "an example"
        )
    return label_dictionary(sorted(counts))


def checked_number(example: Example) -> str:
    """Return the label of a regression as text that fairseq reads."""
    try:
        number = float(example.label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CorpusError(f"{example.place} has the label {example.label!r}: --regression needs a finite number")
    return repr(number)


def checked_label(example: Example, sentences: int, labels: Dictionary | None) -> str:
    """Return the label as it is stored.

    Raises:
        CorpusError: another number of sentences than in the first table, an unknown label, or not a number.
    """
    if len(example.sentences) != sentences:
        raise CorpusError(f"{example.place} has {len(example.sentences)} sentences, and the training table {sentences}")
    if labels is None:
        return checked_number(example)
    if example.label not in labels:
        raise CorpusError(f"{example.place} has the label {example.label!r}, which no training example has")
    return example.label


def write_split(
    writer: SplitWriter, table: Path, sentences: int, encoder: TextEncoder, labels: Dictionary | None
) -> None:
    """Encode and store a table."""
    # One iterator for all chunks: a bar that is asked for another one ends the examples early.
    progress = iter(tqdm(read_table(table), desc=table.stem, unit=" examples", mininterval=1))
    count = 0
    while examples := list(itertools.islice(progress, CHUNK)):
        stored = [checked_label(example, sentences, labels) for example in examples]
        columns = [encoder.encode(column) for column in zip(*(example.sentences for example in examples))]
        for label, *tokens in zip(stored, *columns):
            writer.add(tokens, label)
        count += len(examples)
    if not count:
        raise CorpusError(f"{table} is empty")
    writer.close()


def prepare(data: Path, tables: dict[str, Path], output: Path, regression: bool) -> None:
    """Write the task's folder; it gets its name only when it is complete.

    Raises:
        CorpusError: something is not as it must be; the message says what.
        OSError: a file is missing or cannot be written.
    """
    if output.exists():
        raise CorpusError(f"{output} exists already: name another folder, or remove it first")
    encoder = open_encoder(data)
    labels = None if regression else labels_of(tables["train"])
    first = next(read_table(tables["train"]), None)
    if first is None:
        raise CorpusError(f"{tables['train']} is empty")
    sentences = len(first.sentences)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split, table in tables.items():
        writer = SplitWriter(partial, split, sentences, encoder.dictionary_size, labels)
        write_split(writer, table, sentences, encoder, labels)
    copy_vocabulary(data, partial, sentences)
    if labels is not None:
        labels.save(str(partial / "label" / DICTIONARY_FILE))
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
