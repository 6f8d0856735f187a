"""From GLUE's files to folders of labeled sentences."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.glue.prepared import INDEX_FOLDER
from fairseq_maelm.finetuning.glue_layout import HIGHEST_SCORE, TASKS, Table, submission_name
from fairseq_maelm.finetuning.glue_reading import DEV_IDS_FILES, TableReader
from fairseq_maelm.finetuning.sentence_data import SplitWriter, copy_vocabulary, encoded, label_dictionary
from fairseq_maelm.prepared_folder import made_from, prepare_folder
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files
from fairseq_maelm.text.truncation import special_tokens, truncate
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GlueSettings:
    """What to prepare, and how: the options of ``maelm prepare glue``, which explains them.

    Attributes:
        train_files: task -> a training file of one's own in the columns of the official one.
    """

    glue: Path
    data: Path
    output: Path
    max_positions: int = 512
    train_files: Mapping[str, Path] = field(default_factory=dict)
    accept_counts: bool = False

    def __post_init__(self) -> None:
        least = special_tokens(2) + 2
        if self.max_positions < least:
            raise CorpusError(f"--max-positions must be at least {least}, not {self.max_positions}")
        for task in self.train_files:
            if task not in TASKS:
                raise CorpusError(f"there is no task {task!r} in GLUE: --train-file takes {', '.join(TASKS)}")


@dataclass(frozen=True)
class _Source:
    """The file of one split; any number of rows is right where ``rows`` is empty."""

    path: Path
    table: Table
    rows: tuple[int, ...]


def prepare_task(task: str, settings: GlueSettings) -> dict[str, Any]:
    """Prepare one task and return its manifest; nothing is done when it is there already, made from the same files."""
    sources = _sources(task, settings)
    files = {split: [source.path] for split, source in sources.items()}
    origin = made_from(
        {"task": task, "max_positions": settings.max_positions},
        {**files, "vocabulary": vocabulary_files(settings.data)},
    )
    return prepare_folder(
        settings.output / task, "glue", origin, lambda folder: _write_task(folder, task, sources, settings)
    )


def _write_task(folder: Path, task: str, sources: Mapping[str, _Source], settings: GlueSettings) -> dict[str, Any]:
    """Write all splits; returns the manifest's facts."""
    encoder, labels = open_encoder(settings.data), TASKS[task].labels
    splits = {split: _write_split(folder, task, split, source, encoder, settings) for split, source in sources.items()}
    copy_vocabulary(settings.data, folder, len(sources["train"].table.sentences))
    if labels is not None:
        label_dictionary(labels).save(str(folder / "label" / DICTIONARY_FILE))
    return {"task": task, "labels": labels, "splits": splits}


def check_vocabulary(data: Path) -> None:
    """Refuse a data folder whose dictionary and sentencepiece model do not belong together."""
    vocabulary_files(data)
    load_dictionary(str(data))


def _sources(task: str, settings: GlueSettings) -> dict[str, _Source]:
    folder = settings.glue / task
    sources = {}
    for split, tables in TASKS[task].tables.items():
        if split == "train" and task in settings.train_files:
            path = settings.train_files[task]
            if not path.is_file():
                raise FileNotFoundError(f"there is no training file {path}")
            sources[split] = _Source(path, tables[0], ())
            continue
        table = next((each for each in tables if (folder / each.file).is_file()), None)
        if table is None and split in TASKS[task].names:
            logger.warning("%s: there is no %s, so there will be no predictions for it", task, folder / tables[0].file)
        elif table is None:
            raise FileNotFoundError(f"there is no {' and no '.join(str(folder / each.file) for each in tables)}")
        else:
            sources[split] = _Source(folder / table.file, table, () if settings.accept_counts else table.rows)
    return sources


def _write_split(
    folder: Path, task: str, split: str, source: _Source, encoder: TextEncoder, settings: GlueSettings
) -> dict[str, Any]:
    """Encode and store a split; returns its part of the manifest."""
    definition, table = TASKS[task], source.table
    reader = TableReader(source.path, table, definition)
    labels = None if definition.labels is None else label_dictionary(definition.labels)
    writer = SplitWriter(
        folder, split, len(table.sentences), encoder.dictionary_size, labels, labeled=table.label is not None
    )
    indices: list[str] = []
    truncated = 0
    for example, sentences in encoded(reader.examples(), lambda each: each.sentences, encoder, f"{task} {split}"):
        kept, cut = truncate(sentences, settings.max_positions)
        truncated += cut
        writer.add(kept, _stored_label(example.label, task))
        indices.append(example.number)
    if not indices:
        raise CorpusError(f"{source.path} has no examples")
    _check_count(len(indices) - len(reader.quirks.rejoined), source)
    writer.close()
    (folder / INDEX_FOLDER).mkdir(exist_ok=True)
    (folder / INDEX_FOLDER / f"{split}.txt").write_text("".join(f"{index}\n" for index in indices), encoding="ascii")
    _report(task, split, truncated, reader, settings)
    return {
        "name": task if split == "train" else submission_name(task, split),
        "file": source.path.name,
        "examples": len(indices),
        "truncated": truncated,
        "empty_sentences": reader.quirks.empty_sentences,
        "rejoined_rows": reader.quirks.rejoined,
        "lines_left_out": reader.quirks.left_out,
    }


def _stored_label(label: Optional[str], task: str) -> Optional[str]:
    """Scores of regression are stored in [0, 1], as fairseq's RoBERTa is fine-tuned on them."""
    return label if label is None or TASKS[task].labels is not None else repr(float(label) / HIGHEST_SCORE)


def _check_count(rows: int, source: _Source) -> None:
    if source.rows and rows not in source.rows:
        official = " or ".join(f"{count:,}" for count in source.rows)
        held_out = "" if source.table.held_out is None else f" (split by {' or '.join(DEV_IDS_FILES)})"
        raise CorpusError(
            f"{source.path}{held_out} has {rows:,} examples and the official file {official}: it is cut off or another "
            "version. Give --accept-counts if you want it so"
        )


def _report(task: str, split: str, truncated: int, reader: TableReader, settings: GlueSettings) -> None:
    quirks = reader.quirks
    for count, what in (
        (truncated, f"examples are truncated to {settings.max_positions} tokens"),
        (quirks.empty_sentences, "examples have an empty sentence, as in the official file"),
        (len(quirks.rejoined), "rows were cut by line breaks and are joined again"),
        (len(quirks.left_out), f"lines are pieces of rows and left out: {quirks.left_out[:20]}"),
    ):
        if count:
            logger.warning("%s %s: %s %s", task, split, f"{count:,}", what)
