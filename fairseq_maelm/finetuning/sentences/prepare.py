"""From tables of texts and labels to the folder of a task of sentences."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary

from fairseq_maelm.corpus.header import header_reason
from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.sentence_data import SplitWriter, copy_vocabulary, encoded, label_dictionary
from fairseq_maelm.finetuning.sentences.table import NO_COLUMNS, Columns, Example, read_table
from fairseq_maelm.prepared_folder import made_from, prepare_folder
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

KIND = "sentences"


@dataclass(frozen=True)
class SentenceSettings:
    """What to prepare, and how.

    Attributes:
        tables: split -> file: train, perhaps valid, and test, which may lack labels.
        vocabulary: folder with dict.txt and what encodes text.
        output: the new folder.
        columns: where texts and labels stand.
        regression: whether labels are numbers.
        valid_fraction: of the training examples, held out for validation where there is no table of its own.
        seed: of that draw.
    """

    tables: Mapping[str, Path]
    vocabulary: Path
    output: Path
    columns: Columns = NO_COLUMNS
    regression: bool = False
    valid_fraction: float = 0.1
    seed: int = 1


def prepare_sentences(settings: SentenceSettings) -> dict[str, Any]:
    """Write the task's folder; it gets its name only when it is complete.

    Returns:
        its manifest.

    Raises:
        CorpusError: something is not as it must be; the message says what.
        OSError: a file is missing or cannot be written.
    """
    chosen: dict[str, Any] = {**settings.columns._asdict(), "regression": settings.regression}
    if "valid" not in settings.tables:
        chosen |= {"valid_fraction": settings.valid_fraction, "seed": settings.seed}
    files = {split: [path] for split, path in settings.tables.items()}
    for path in settings.tables.values():
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
    origin = made_from(chosen, {**files, "vocabulary": vocabulary_files(settings.vocabulary)})
    return prepare_folder(settings.output, KIND, origin, lambda folder: _write(settings, folder))


def _write(settings: SentenceSettings, folder: Path) -> dict[str, Any]:
    """Write all files; returns what the manifest says of them."""
    encoder = open_encoder(settings.vocabulary)
    first, labels, held_out = _look(settings)
    texts, train = len(first.texts), settings.tables["train"]
    splits = {}
    for split, table in settings.tables.items():
        examples = enumerate(read_table(table, settings.columns, texts))
        kept = (example for number, example in examples if split != "train" or number not in held_out)
        splits[split] = _Writer(folder, split, texts, encoder, labels, table).write(kept)
    if held_out:
        drawn = (example for number, example in enumerate(read_table(train, settings.columns)) if number in held_out)
        splits["valid"] = _Writer(folder, "valid", texts, encoder, labels, train).write(drawn)
        splits["valid"]["held_out_of"] = "train"
    copy_vocabulary(settings.vocabulary, folder, texts)
    if labels is not None:
        labels.save(str(folder / "label" / DICTIONARY_FILE))
    return {"texts": texts, "labels": labels and labels.symbols[labels.nspecial :], "splits": splits}


def _look(settings: SentenceSettings) -> tuple[Example, Optional[Dictionary], set[int]]:
    """The first training example; the labels in alphabetical order, which is the order of the classes, or None for
    numbers; and which examples are held out."""
    table = settings.tables["train"]
    found = [(example.label, example.place) for example in read_table(table, settings.columns)]
    first = next(read_table(table, settings.columns))
    if first.label is None:
        raise CorpusError(f"{table} has no labels: name their column, as in --label label")
    labels = None if settings.regression else _labels_of(table, first, Counter(str(label) for label, _ in found))
    if "valid" in settings.tables:
        return first, labels, set()
    strata = ["" if settings.regression else str(label) for label, _ in found]
    held_out = draw(strata, settings.valid_fraction, settings.seed)
    if not 0 < len(held_out) < len(strata):
        raise CorpusError(
            f"--valid-fraction {settings.valid_fraction} takes {len(held_out)} of the {len(strata)} examples of "
            f"{table}: choose another, or give --valid"
        )
    return first, labels, held_out


def _labels_of(table: Path, first: Example, counts: Counter[str]) -> Dictionary:
    if len(counts) < 2:
        raise CorpusError(f"{table} has {len(counts)} different labels; classification needs two at least")
    if reason := header_reason(first.texts, str(first.label), counts):
        raise CorpusError(
            f"{first.place} looks like a header: {reason}. Name the columns with --text and --label, remove the line, "
            "or move it down if it is an example"
        )
    return label_dictionary(sorted(counts))


def draw(strata: list[str], fraction: float, seed: int) -> set[int]:
    """Draw a fraction of examples at random, and of each stratum the same fraction as nearly as can be.

    Args:
        strata: of each example.
        fraction: of all of them, in [0, 1].
        seed: another draw for another number.

    Returns:
        numbers of examples.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(strata))
    members: dict[str, list[int]] = {name: [] for name in sorted(set(strata))}
    for number in order.tolist():
        members[strata[number]].append(number)
    drawn: set[int] = set()
    seen = 0
    for numbers in members.values():
        seen += len(numbers)
        drawn.update(numbers[: round(fraction * seen) - len(drawn)])
    return drawn


class _Writer:
    """Encodes and stores the examples of a split."""

    def __init__(
        self, folder: Path, split: str, texts: int, encoder: TextEncoder, labels: Optional[Dictionary], table: Path
    ) -> None:
        self.folder, self.split, self.texts = folder, split, texts
        self.encoder, self.labels, self.table = encoder, labels, table

    def write(self, examples: Iterable[Example]) -> dict[str, Any]:
        """Store them; returns what the manifest says of the split."""
        checked = ((example, self._label(example)) for example in examples)
        writer, count, counts = None, 0, Counter[str]()
        for (_, label), tokens in encoded(checked, lambda pair: pair[0].texts, self.encoder, self.split):
            if writer is None:
                size, labeled = self.encoder.dictionary_size, label is not None
                writer = SplitWriter(self.folder, self.split, self.texts, size, self.labels, labeled)
            writer.add(tokens, label)
            count += 1
            counts.update([] if label is None or self.labels is None else [label])
        if writer is None:
            raise CorpusError(f"{self.table} is empty")
        writer.close()
        return {"examples": count, **({"labels": dict(sorted(counts.items()))} if counts else {})}

    def _label(self, example: Example) -> Optional[str]:
        """The label as it is stored."""
        if len(example.texts) != self.texts:
            raise CorpusError(f"{example.place} has {len(example.texts)} texts, and the training table {self.texts}")
        if example.label is None:
            if self.split != "test":
                raise CorpusError(f"{example.place} has no label: only --test may be without")
            return None
        if self.labels is None:
            return checked_number(example)
        if example.label not in self.labels:
            raise CorpusError(f"{example.place} has the label {example.label!r}, which no training example has")
        return example.label


def checked_number(example: Example) -> str:
    """Return the label of a regression as text that fairseq reads.

    Raises:
        CorpusError: it is no finite number.
    """
    try:
        number = float(str(example.label))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CorpusError(f"{example.place} has the label {example.label!r}: --regression needs a finite number")
    return repr(number)
