"""Prepare the folder of a sentence task from tables of texts and labels.

fairseq's own task sentence_prediction can read this folder too, unless rows have several labels:

FOLDER/input0/{train,valid,...}.{bin,idx}  dict.txt  sentencepiece.bpe.model
FOLDER/input1/...                                     the second sentences of pairs
FOLDER/label/{train,valid,...}.{bin,idx}  dict.txt    classes, in the order of the dictionary; or
FOLDER/label/{train,valid,...}.label                  numbers, one per line
FOLDER/index/{train,valid,...}.txt                    ids of the examples, if the tables have ids, one per line
"""

import dataclasses
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from numpy.typing import NDArray
from tqdm import tqdm

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.lines import log_invalid
from fairseq_maelm.finetuning.doubtful_results import numbers_as_classes
from fairseq_maelm.finetuning.sentences.kind import SentenceSettings
from fairseq_maelm.finetuning.tables import Example, header_reason, read_table
from fairseq_maelm.finetuning.task_folder import IGNORED, WHY_IGNORED, prepare_task_folder
from fairseq_maelm.models.labels import LABELS_FILE, Classes, Numbers, Sets
from fairseq_maelm.text.dictionary import FILLER, MASK
from fairseq_maelm.text.truncation import truncate
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, TextEncoder

logger = logging.getLogger(__name__)

INDEX_FOLDER = "index"
_NO_LABEL = (None, "-1", ("-1",))

_CHUNK = 10_000  # number of examples that are encoded at once


def prepare_sentences(
    settings: SentenceSettings, vocabulary: Path, output: Path, allow_unknown: bool = False
) -> dict[str, Any]:
    """Prepare the task's folder and return its manifest; raises the errors of ``prepare_task_folder``."""
    chosen = dataclasses.asdict(settings)
    for name in ("train", "valid", "test", *(() if settings.valid is None else ("valid_fraction", "seed"))):
        del chosen[name]
    for name in ("skip_invalid", "label_separator"):
        if not chosen[name]:
            del chosen[name]  # folders without the option keep their settings
    write = functools.partial(_write, settings)
    return prepare_task_folder(output, "sentences", chosen, settings.tables, vocabulary, write, "input0", allow_unknown)


def _write(settings: SentenceSettings, folder: Path, encoder: TextEncoder) -> dict[str, Any]:
    """Write all files, and return facts for the manifest."""
    invalid: list[str] = []
    skipped = invalid if settings.skip_invalid else None
    train, separator = _read_train(settings, skipped)
    for part, values in (
        ("texts", {each.texts for each in train}),
        ("labels", {frozenset(names_of(each)) for each in train}),
    ):
        # That there is one class is said where classes are counted.
        if len(values) == 1 < len(train) and (part == "texts" or settings.regression or separator is not None):
            raise CorpusError(f"the {part} of all {len(train)} rows of {settings.train} are equal: nothing to learn")
    texts = len(train[0].texts)
    labels = Numbers() if settings.regression else _labels_of(settings, train, separator)
    train = _kept(settings, "train", train, texts, labels, skipped)
    tables = {
        split: (path, _read_split(settings, split, texts, labels, skipped))
        for split, path in settings.tables.items()
        if split != "train"
    }
    log_invalid(invalid)
    if settings.valid is None:
        strata = ["" if settings.regression else "\n".join(names_of(each)) for each in train]
        held_out = draw(strata, settings.valid_fraction or 0.0, settings.seed or 0)
        if not 0 < len(held_out) < len(train):
            raise CorpusError(
                f"--valid-fraction {settings.valid_fraction} holds out {len(held_out)} of the {len(train)} examples "
                f"of {settings.train}: choose another fraction, or give --valid"
            )
        tables["valid"] = settings.train, [each for number, each in enumerate(train) if number in held_out]
        train = [each for number, each in enumerate(train) if number not in held_out]
    # The manifest lists the splits in the order of this dict.
    tables = {"train": (settings.train, train), **tables}
    facts = write_task(folder, encoder, tables, labels, texts, settings.max_length)
    if settings.valid is None:
        facts["splits"]["valid"]["held_out_of"] = "train"
    if settings.skip_invalid:
        facts["invalid_rows"] = len(invalid)
    return {**facts, **labels.to_json()}


def _read_train(settings: SentenceSettings, invalid: list[str] | None) -> tuple[list[Example], str | None]:
    """Read the training table; return its rows and, if they have sets of labels, the labels' separator."""
    given = None if settings.regression else settings.label_separator or ""
    rows = list(read_table(settings.train, settings, invalid=invalid, label_separator=given))
    if rows[0].label is None:
        raise CorpusError(f"{settings.train} has no labels: name their column with --label")
    if not any(isinstance(each.label, tuple) for each in rows):
        return rows, None
    if given and not any(len(names_of(each)) > 1 for each in rows) and any(map(names_of, rows)):
        raise CorpusError(
            f"{settings.train}: no row has two labels with {given!r} between them: give the character that separates "
            "labels, or omit --label-separator if a row has one label"
        )
    return [each._replace(label=names_of(each)) for each in rows], given or ";"


def _read_split(
    settings: SentenceSettings,
    split: str,
    texts: int,
    labels: Classes | Numbers,
    invalid: list[str] | None,
) -> list[Example]:
    """Read the rows of the validation or test table; in a test table, labels that are empty or -1 are none."""
    is_test = split == "test"
    path, separator = settings.tables[split], labels.separator
    rows = list(read_table(path, settings, texts, label_optional=is_test, invalid=invalid, label_separator=separator))
    # -1 may be a label or a number to predict, unless it is every row's.
    if is_test and (not labels.accepts("-1") or all(each.label in _NO_LABEL for each in rows)):
        rows = [each._replace(label=None) if each.label in _NO_LABEL else each for each in rows]
    # An empty set of labels may be the right one, unless it is every row's.
    if all(each.label is None for each in rows) or (is_test and not any(map(names_of, rows))):
        return [each._replace(label=None) for each in rows]
    return _kept(settings, split, rows, texts, labels, invalid)


def _kept(
    settings: SentenceSettings,
    split: str,
    rows: list[Example],
    texts: int,
    labels: Classes | Numbers,
    invalid: list[str] | None,
) -> list[Example]:
    """Return the rows whose labels can be stored; add messages about the others to ``invalid``."""
    path, kept = settings.tables[split], []
    for each in rows:
        try:
            if each.label is None:
                raise CorpusError(f"{each.place} has no label, but other rows of {path} have one")
            _checked(each, split, texts, labels)
            kept.append(each)
        except CorpusError as error:
            if invalid is None:
                raise
            invalid.append(str(error))
    if not kept:
        raise CorpusError(f"{path} has no valid row: {invalid[0] if invalid else ''}")
    return kept


def write_task(
    folder: Path,
    encoder: TextEncoder,
    sources: Mapping[str, tuple[Path, Iterable[Example]]],
    labels: Classes | Numbers,
    texts: int,
    max_length: int | None,
) -> dict[str, Any]:
    """Encode and store all splits, of examples with ``texts`` texts (1 or 2), and return facts for the manifest."""
    splits = {}
    for split, (_, found) in sources.items():
        examples = [_checked(each, split, texts, labels) for each in found]
        splits[split] = _write_split(folder, split, examples, labels, encoder, max_length)
    if texts == 2:
        (folder / "input1" / DICTIONARY_FILE).write_bytes(encoder.files[0].read_bytes())
    if not isinstance(labels, Numbers):
        label_dictionary(labels.names).save(str(folder / LABELS_FILE))
    # The manifest's order; it has the labels' separator at the end.
    first = {name: labels.to_json()[name] for name in ("labels", "scale")}
    return {**first, "texts": texts, "splits": splits}


def _write_split(
    folder: Path,
    split: str,
    examples: Sequence[Example],
    labels: Classes | Numbers,
    encoder: TextEncoder,
    max_length: int | None,
) -> dict[str, Any]:
    """Tokenize and store the examples of a split and their ids, and return facts for the manifest."""
    cut: list[bool] = []

    def rows() -> Iterator[tuple[Sequence[NDArray[np.unsignedinteger]], str | tuple[str, ...] | None]]:
        # One iterator for all chunks, because a second iterator over the bar would lose examples.
        progress = iter(tqdm(examples, desc=split, unit=" examples", mininterval=1))
        while chunk := list(itertools.islice(progress, _CHUNK)):
            columns = [encoder.encode(column) for column in zip(*(example.texts for example in chunk))]
            for example, *tokens in zip(chunk, *columns):
                if max_length is not None:
                    tokens, shortened = truncate(tokens, max_length)
                    cut.append(shortened)
                yield tokens, example.label

    write_split(folder, split, rows(), encoder.dictionary_size, labels)
    if ids := [example.id for example in examples if example.id is not None]:
        (folder / INDEX_FOLDER).mkdir(exist_ok=True)
        (folder / INDEX_FOLDER / f"{split}.txt").write_text("".join(f"{each}\n" for each in ids), encoding="ascii")
    counts = Counter(name for example in examples for name in names_of(example) if name in labels.numbers)
    return {
        "examples": len(examples),
        **({"labels": dict(sorted(counts.items()))} if counts else {}),
        **({} if max_length is None else {"truncated": sum(cut)}),
    }


def write_split(
    folder: Path,
    split: str,
    rows: Iterable[tuple[Sequence[NDArray[np.unsignedinteger]], str | tuple[str, ...] | None]],
    dictionary_size: int,
    labels: Classes | Numbers,
) -> None:
    """Store the examples of a split.

    ``rows`` has each example's one or two texts <uint16 or uint32>[tokens], with </s> at the end, and its label as in
    ``Example``. ``dictionary_size``, the number of symbols without <mask>, determines how tokens are stored.
    """
    builders: dict[str, Any] = {}
    numbers: list[str] = []
    empty = Dictionary()
    for texts, label in rows:
        items = {f"input{number}": torch.from_numpy(tokens.astype("int64")) for number, tokens in enumerate(texts)}
        if label is not None and isinstance(labels, Numbers):
            numbers.append(repr(float(str(label)) / (labels.scale or 1.0)))
        elif label is not None:
            classes = (label,) if isinstance(label, str) else label
            items["label"] = torch.tensor([*(labels.numbers[name] + empty.nspecial for name in classes), empty.eos()])
        for name, item in items.items():
            if name not in builders:
                (folder / name).mkdir(exist_ok=True)
                symbols = dictionary_size if name != "label" else len(empty) + labels.outputs
                builders[name] = make_builder(str(folder / name / f"{split}.bin"), impl="mmap", vocab_size=symbols)
            builders[name].add_item(item)
    for name, builder in builders.items():
        builder.finalize(str(folder / name / f"{split}.idx"))
    if numbers:
        (folder / "label").mkdir(exist_ok=True)
        lines = "".join(f"{number}\n" for number in numbers)
        (folder / "label" / f"{split}.label").write_text(lines, encoding="ascii")


def label_dictionary(labels: Iterable[str]) -> Dictionary:
    """Make the label dictionary, in the order of the classes."""
    dictionary = Dictionary()
    for label in labels:
        if label == IGNORED:
            raise CorpusError(f"a label is {IGNORED}, which {WHY_IGNORED}")
        if label in dictionary or label == MASK or label.startswith(FILLER):
            raise CorpusError(f"the label {label!r} is the name of one of fairseq's special symbols: rename it")
        if "\n" in label or "\r" in label:
            raise CorpusError(f"the label {label!r} has a line end: rename it")
        dictionary.add_symbol(label)
    return dictionary


def names_of(example: Example) -> tuple[str, ...]:
    """Return the labels of an example with any number of them, or with one or none."""
    label = example.label
    return label if isinstance(label, tuple) else () if label is None else (label,)


def _labels_of(settings: SentenceSettings, rows: Sequence[Example], separator: str | None) -> Classes:
    counts, first = Counter(name for each in rows for name in names_of(each)), rows[0]
    if len(counts) < 2:
        raise CorpusError(f"{settings.train} has {len(counts)} different labels: classification needs at least two")
    if separator is not None and (joined := [name for name in counts if separator in name]):
        raise CorpusError(f"the label {joined[0]!r} has the separator of labels: give another by --label-separator")
    if separator is None and (doubt := numbers_as_classes([*counts])):
        logger.warning("%s", doubt)
    reason = None if settings.named else header_reason(first.texts, (separator or "").join(names_of(first)), counts)
    if reason:
        raise CorpusError(
            f"{first.place} looks like a header: {reason}. Name the columns with --text and --label, remove the line, "
            "or move it down if it is an example"
        )
    names = tuple(sorted(counts))
    label_dictionary(names)
    return Classes(names) if separator is None else Sets(names, separator=separator)


def draw(strata: list[str], fraction: float, seed: int) -> set[int]:
    """Return the indices of a random sample of a ``fraction`` in [0, 1] of the examples, drawn by their ``strata``."""
    order = np.random.default_rng(seed).permutation(len(strata))
    members: dict[str, list[int]] = {name: [] for name in sorted(set(strata))}
    for number in order.tolist():
        members[strata[number]].append(number)
    drawn: set[int] = set()
    seen = 0
    for numbers in members.values():
        seen += len(numbers)
        drawn.update(numbers[: round(fraction * seen) - len(drawn)])
    return drawn


def _checked(example: Example, split: str, texts: int, labels: Classes | Numbers) -> Example:
    """Return an example that can be stored, or raise a CorpusError."""
    place, label = example.place, example.label
    if len(example.texts) != texts:
        found = "1 text" if len(example.texts) == 1 else f"{len(example.texts)} texts"
        raise CorpusError(f"{place} has {found}, but the training table has {texts}")
    for name in names_of(example):
        labels.check(name, place)
    if label is None and not split.startswith("test"):
        raise CorpusError(f"{place} has no label: only --test may lack labels")
    return example
