"""The preparation of a task folder from tables of texts and labels."""

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

from fairseq_maelm.corpus.header import header_reason
from fairseq_maelm.corpus.tables import Columns, Example, read_table
from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder
from fairseq_maelm.finetuning.doubtful_results import numbers_as_classes
from fairseq_maelm.finetuning.sentence_data import SplitWriter, copy_vocabulary, encoded, label_dictionary
from fairseq_maelm.options import (
    check_limits,
    existing_path,
    option,
)
from fairseq_maelm.text.dictionary import class_names
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files
from fairseq_maelm.text.truncation import truncate
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

logger = logging.getLogger(__name__)

INDEX_FOLDER = "index"
"""The folder with a file for each split of the ids of its examples, one per line."""

# Maximum number of labels to name in a message.
_SHOWN = 20

SHORTEST = 6
"""Number of tokens of the shortest pair of texts, special tokens included."""


@dataclass(frozen=True, kw_only=True)
class SentenceSettings(Columns):
    """The options of ``maelm prepare sentences``."""

    train: Path = option(help="table to train on", type=existing_path, metavar="TABLE")
    valid: Path | None = option(
        None, help="table to choose a checkpoint by (default: a part of --train)", type=existing_path, metavar="TABLE"
    )
    test: Path | None = option(
        None, help="table to test on, with or without labels", type=existing_path, metavar="TABLE"
    )
    regression: bool = option(False, help="treat the labels as numbers")
    valid_fraction: float = option(
        0.1, help="fraction of the training examples, the same for each label, to hold out if there is no --valid",
        minimum=0, maximum=1,
    )  # fmt: skip
    seed: int = option(1, help="random seed of the held-out examples", minimum=0)
    max_length: int | None = option(
        None,
        help="maximum number of tokens in an example; longer examples are truncated now; by default training "
        "truncates them",
        minimum=SHORTEST,
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def tables(self) -> dict[str, Path]:
        """The given tables, by split."""
        given = {split: getattr(self, split) for split in ("train", "valid", "test")}
        return {split: path for split, path in given.items() if path is not None}


def prepare_sentences(settings: SentenceSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Write the task's folder and return its manifest; the folder gets its name when it is complete.

    Raises:
        CorpusError: a table is not valid; the message names file and line.
        OSError: a file is missing or cannot be written.
    """
    chosen = dataclasses.asdict(settings)
    for name in ("train", "valid", "test", *(() if settings.valid is None else ("valid_fraction", "seed"))):
        del chosen[name]
    files = {split: [path] for split, path in settings.tables.items()}
    origin = made_from(chosen, {**files, "vocabulary": vocabulary_files(vocabulary)})
    return prepare_folder(output, "sentences", origin, lambda folder: _write(settings, vocabulary, folder))


def _write(settings: SentenceSettings, vocabulary: Path, folder: Path) -> dict[str, Any]:
    """Write all files, and return facts for the manifest."""
    first, labels, held_out = _survey(settings)
    texts = len(first.texts)

    def examples(split: str, path: Path) -> Iterator[Example]:
        for number, each in enumerate(read_table(path, settings, texts, label_optional=split == "test")):
            if split != "train" or number not in held_out:
                yield each

    sources = {split: (path, examples(split, path)) for split, path in settings.tables.items()}
    if held_out:
        table = enumerate(read_table(settings.train, settings))
        sources["valid"] = settings.train, (each for number, each in table if number in held_out)
    facts = write_task(folder, open_encoder(vocabulary), sources, labels, texts, settings.max_length)
    if held_out:
        facts["splits"]["valid"]["held_out_of"] = "train"
    return facts


def write_task(
    folder: Path,
    encoder: TextEncoder,
    sources: Mapping[str, tuple[Path, Iterable[Example]]],
    labels: Dictionary | None,
    texts: int,
    max_length: int | None,
    scale: float | None = None,
) -> dict[str, Any]:
    """Encode and store all splits, copy the vocabulary, and return facts for the manifest.

    Args:
        folder: the new folder.
        encoder: the tokenizer.
        sources: split -> the file to name in errors, and its examples.
        labels: the classes; None for numbers.
        texts: number of texts of an example, 1 or 2.
        max_length: maximum number of tokens in an example; None to truncate nothing.
        scale: largest value of numbers from 0, by which they are divided; None for any finite numbers.
    """
    splits = {}
    for split, (path, examples) in sources.items():
        checked = (
            each._replace(label=_stored_label(each, split, texts, labels, scale, sources["train"][0]))
            for each in examples
        )
        splits[split] = _write_split(folder, split, path, checked, labels, encoder, max_length)
    copy_vocabulary(encoder.files, folder, texts)
    names = None
    if labels is not None:
        labels.save(str(folder / "label" / DICTIONARY_FILE))
        names = labels.symbols[labels.nspecial :]
        if doubt := numbers_as_classes(names):
            logger.warning("%s", doubt)
    return {"labels": names, "scale": scale, "texts": texts, "splits": splits}


def _write_split(
    folder: Path,
    split: str,
    path: Path,
    examples: Iterable[Example],
    labels: Dictionary | None,
    encoder: TextEncoder,
    max_length: int | None,
) -> dict[str, Any]:
    """Encode and store the examples of a file, with their ids, and return facts for the manifest."""
    writer, counts, ids, count, truncated = None, Counter[str](), list[str](), 0, 0
    for example, tokens in encoded(examples, attrgetter("texts"), encoder, split):
        if writer is None:
            labeled = example.label is not None
            writer = SplitWriter(folder, split, len(example.texts), encoder.dictionary_size, labels, labeled)
        if max_length is not None:
            tokens, shortened = truncate(tokens, max_length)
            truncated += shortened
        writer.add(tokens, example.label)
        count += 1
        counts.update([] if example.label is None or labels is None else [example.label])
        ids += [] if example.id is None else [example.id]
    if writer is None:
        raise CorpusError(f"{path} is empty")
    writer.close()
    if ids:
        (folder / INDEX_FOLDER).mkdir(exist_ok=True)
        (folder / INDEX_FOLDER / f"{split}.txt").write_text("".join(f"{each}\n" for each in ids), encoding="ascii")
    return {
        "examples": count,
        **({"labels": dict(sorted(counts.items()))} if counts else {}),
        **({} if max_length is None else {"truncated": truncated}),
    }


def _survey(settings: SentenceSettings) -> tuple[Example, Dictionary | None, set[int]]:
    """Return the first training example, the sorted labels (None for numbers), and the numbers of held-out examples."""
    table = settings.train
    found = [str(example.label) for example in read_table(table, settings)]
    first = next(read_table(table, settings))
    if first.label is None:
        raise CorpusError(f"{table} has no labels: name their column with --label")
    labels = None if settings.regression else _labels_of(table, first, Counter(found))
    if settings.valid is not None:
        return first, labels, set()
    strata = [""] * len(found) if settings.regression else found
    held_out = draw(strata, settings.valid_fraction, settings.seed)
    if not 0 < len(held_out) < len(strata):
        raise CorpusError(
            f"--valid-fraction {settings.valid_fraction} holds out {len(held_out)} of the {len(strata)} examples of "
            f"{table}: choose another fraction, or give --valid"
        )
    return first, labels, held_out


def _labels_of(table: Path, first: Example, counts: Mapping[str, int]) -> Dictionary:
    if len(counts) < 2:
        raise CorpusError(f"{table} has {len(counts)} different labels: classification needs at least two")
    if reason := header_reason(first.texts, str(first.label), counts):
        raise CorpusError(
            f"{first.place} looks like a header: {reason}. Name the columns with --text and --label, remove the line, "
            "or move it down if it is an example"
        )
    return label_dictionary(sorted(counts))


def draw(strata: list[str], fraction: float, seed: int) -> set[int]:
    """Draw a fraction in [0, 1] of all examples at random, about the same share of each stratum; return their numbers.

    ``strata`` has the stratum of each example.
    """
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


def _stored_label(
    example: Example, split: str, texts: int, labels: Dictionary | None, scale: float | None, train: Path
) -> str | None:
    """Check an example and return the label to store."""
    place, label = example.place, example.label
    if len(example.texts) != texts:
        found = "1 text" if len(example.texts) == 1 else f"{len(example.texts)} texts"
        raise CorpusError(f"{place} has {found}, but the training table has {texts}")
    if label is None:
        if not split.startswith("test"):
            raise CorpusError(f"{place} has no label: only --test may lack labels")
        return None
    if labels is not None:
        if label not in labels:
            known = ", ".join(map(repr, class_names(labels)[:_SHOWN]))
            raise CorpusError(
                f"{place} has the label {label!r}, but the labels are {known}: correct it, remove the row, or add "
                f"examples with this label to {train}"
            )
        return label
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) if scale is None else 0.0 <= number <= scale):
        wanted = "a finite number" if scale is None else f"a number from 0 to {scale:g}"
        raise CorpusError(f"{place} has the label {label!r}, which is not {wanted}")
    return repr(number if scale is None else number / scale)
