"""The preparation of task folders from GLUE's official files (Wang et al., 2018)."""

import argparse
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder
from fairseq_maelm.finetuning.glue_layout import DEV_IDS_FILES, HIGHEST_SCORE, TASKS, Quirks, Table, read_glue
from fairseq_maelm.finetuning.sentence_data import label_dictionary
from fairseq_maelm.finetuning.sentences.prepare import SHORTEST, write_task
from fairseq_maelm.options import (
    check_limits,
    existing_path,
    option,
)
from fairseq_maelm.text.imported import open_encoder, vocabulary_files

logger = logging.getLogger(__name__)


def _train_file(text: str) -> tuple[str, Path]:
    task, _, path = text.partition("=")
    if task not in TASKS or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not TASK=FILE, such as QNLI=train.tsv, with a task of {', '.join(TASKS)}"
        )
    return task, existing_path(path)


@dataclass(frozen=True)
class GlueSettings:
    """The options of ``maelm prepare glue``."""

    glue: Path = option(
        help="folder with GLUE's unpacked folders CoLA, SST-2, MRPC, ...",
        type=existing_path,
        metavar="GLUE",
        positional=True,
    )
    tasks: tuple[str, ...] = option(
        (), help=f"tasks among {', '.join(TASKS)} (default: those in GLUE)", metavar="TASK", choices=TASKS
    )
    max_length: int = option(
        512, help="maximum number of tokens in an example; longer examples are truncated", minimum=SHORTEST
    )
    train_file: tuple[tuple[str, Path], ...] = option(
        (), help="another training file for a task, with the official columns and any number of rows",
        metavar="TASK=FILE", type=_train_file,
    )  # fmt: skip
    accept_counts: bool = option(False, help="accept files whose numbers of rows differ from the official ones")

    def __post_init__(self) -> None:
        check_limits(self)


class _Source(NamedTuple):
    """The file of one split; an empty ``rows`` allows any number of rows."""

    path: Path
    table: Table
    rows: tuple[int, ...]


def prepare_task(task: str, settings: GlueSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Prepare one task and return its manifest; keep a folder that was made from the same files."""
    sources, definition = _sources(task, settings), TASKS[task]
    files = {split: [source.path] for split, source in sources.items()}
    origin = made_from(
        {"task": task, "max_length": settings.max_length}, {**files, "vocabulary": vocabulary_files(vocabulary)}
    )

    def write(folder: Path) -> dict[str, Any]:
        labels = None if definition.labels is None else label_dictionary(definition.labels)
        quirks = {split: Quirks() for split in sources}
        examples = {
            split: (source.path, read_glue(source.path, source.table, definition, quirks[split]))
            for split, source in sources.items()
        }
        texts = 1 if sources["train"].table.columns.text_pair is None else 2
        # Scores are stored in [0, 1], as for fairseq's RoBERTa.
        scale = None if labels is not None else HIGHEST_SCORE
        facts = write_task(folder, open_encoder(vocabulary), examples, labels, texts, settings.max_length, scale)
        for split, own in facts["splits"].items():
            _check_count(own["examples"] - len(quirks[split].rejoined), sources[split])
            own |= {"file": sources[split].path.name, **asdict(quirks[split])}
            _report(f"{task} {split}", quirks[split])
        return {"task": task, **facts}

    return prepare_folder(output, "glue", origin, write)


def _report(split: str, quirks: Quirks) -> None:
    for count, what in (
        (quirks.empty_sentences, "examples have an empty sentence, as in the official file"),
        (len(quirks.rejoined), "rows with line breaks inside were joined"),
        (len(quirks.left_out), f"lines are pieces of rows and were skipped: {quirks.left_out[:20]}"),
    ):
        if count:
            logger.warning("%s: %s %s", split, f"{count:,}", what)


def _sources(task: str, settings: GlueSettings) -> dict[str, _Source]:
    folder, train_files, sources = settings.glue / task, dict(settings.train_file), {}
    for split, tables in TASKS[task].tables.items():
        if split == "train" and task in train_files:
            sources[split] = _Source(train_files[task], tables[0], ())
            continue
        table = next((each for each in tables if (folder / each.file).is_file()), None)
        if table is None and split.startswith("test"):
            logger.warning("%s: there is no %s, so there will be no predictions for it", task, folder / tables[0].file)
        elif table is None:
            raise FileNotFoundError(f"there is no {' and no '.join(str(folder / each.file) for each in tables)}")
        else:
            sources[split] = _Source(folder / table.file, table, () if settings.accept_counts else table.rows)
    return sources


def _check_count(rows: int, source: _Source) -> None:
    if source.rows and rows not in source.rows:
        official = " or ".join(f"{count:,}" for count in source.rows)
        held_out = "" if source.table.held_out is None else f" (split by {' or '.join(DEV_IDS_FILES)})"
        raise CorpusError(
            f"{source.path}{held_out} has {rows:,} examples, but the official file has {official}: the file is "
            "incomplete or another version. --accept-counts accepts it"
        )
