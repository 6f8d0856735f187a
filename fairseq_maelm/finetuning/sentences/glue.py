"""The sub-command ``maelm prepare glue``: from GLUE's official files (Wang et al., 2018) to task folders."""

import argparse
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary

from fairseq_maelm.arguments import (
    add_output,
    add_settings,
    add_verify,
    add_vocabulary,
    check_limits,
    existing_path,
    option,
    settings_of,
)
from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.glue_layout import HIGHEST_SCORE, TASKS, Table, submission_name
from fairseq_maelm.finetuning.glue_reading import DEV_IDS_FILES, TableReader
from fairseq_maelm.finetuning.sentence_data import label_dictionary
from fairseq_maelm.finetuning.sentence_table import Example
from fairseq_maelm.finetuning.sentences.prepare import SHORTEST, finish_folder, write_split
from fairseq_maelm.prepared_folder import made_from, prepare_folder, verify_outputs
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command prepares the remaining tasks"

INDEX_FOLDER = "index"
"""The folder with a file for each split of the indices under which predictions are submitted, one per line."""


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare glue``."""
    parser.description = (
        "Checks GLUE's files and encodes each task into a folder for fine-tuning. Tasks that are already prepared from "
        "the same files are kept."
    )
    add_vocabulary(parser, required=True)
    add_output(parser, "folder for all tasks")
    add_settings(parser, GlueSettings)
    add_verify(parser)


def run(args: argparse.Namespace) -> None:
    """Prepare the tasks and write the names of their folders to standard output."""
    settings = settings_of(GlueSettings, args)
    # Refuse a dictionary and a tokenizer that do not belong together before any file is read.
    vocabulary_files(args.vocabulary)
    load_dictionary(str(args.vocabulary))
    tasks = settings.tasks or tuple(task for task in TASKS if (settings.glue / task).is_dir())
    if not tasks:
        raise FileNotFoundError(f"{settings.glue} has no folder named {', '.join(TASKS)}")
    missing = [task for task in TASKS if task not in tasks]
    if missing and not settings.tasks:
        logger.warning("%s has no %s", settings.glue, ", ".join(missing))
    for task in tasks:
        manifest = prepare_task(task, settings, args.vocabulary, args.output / task)
        for split, facts in manifest["splits"].items():
            logger.info(
                "%s %s: %s examples, %s truncated", task, split, f"{facts['examples']:,}", f"{facts['truncated']:,}"
            )
        if args.verify:
            verify_outputs(args.output / task)
        sys.stdout.write(f"{args.output / task}\n")


def prepare_task(task: str, settings: GlueSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Prepare one task and return its manifest; keep a folder that was made from the same files."""
    sources = _sources(task, settings)
    files = {split: [source.path] for split, source in sources.items()}
    origin = made_from(
        {"task": task, "max_length": settings.max_length}, {**files, "vocabulary": vocabulary_files(vocabulary)}
    )

    def write(folder: Path) -> dict[str, Any]:
        encoder, definition = open_encoder(vocabulary), TASKS[task]
        labels = None if definition.labels is None else label_dictionary(definition.labels)
        splits = {
            split: _write_split(folder, task, split, source, labels, encoder, settings.max_length)
            for split, source in sources.items()
        }
        texts = len(sources["train"].table.sentences)
        # Scores are stored in [0, 1], as for fairseq's RoBERTa.
        scale = None if labels is not None else HIGHEST_SCORE
        return {"task": task, **finish_folder(folder, vocabulary, labels, texts), "scale": scale, "splits": splits}

    return prepare_folder(output, "glue", origin, write)


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


def _write_split(
    folder: Path,
    task: str,
    split: str,
    source: _Source,
    labels: Dictionary | None,
    encoder: TextEncoder,
    max_length: int,
) -> dict[str, Any]:
    """Encode and store a split, and return facts for the manifest."""
    reader, indices = TableReader(source.path, source.table, TASKS[task]), list[str]()

    def examples() -> Iterator[Example]:
        for each in reader.examples():
            indices.append(each.number)
            label = each.label
            if label is not None and labels is None:
                label = repr(float(label) / HIGHEST_SCORE)
            yield Example(each.place, each.sentences, label)

    facts = write_split(folder, split, source.path, examples(), labels, encoder, max_length)
    _check_count(len(indices) - len(reader.quirks.rejoined), source)
    (folder / INDEX_FOLDER).mkdir(exist_ok=True)
    (folder / INDEX_FOLDER / f"{split}.txt").write_text("".join(f"{index}\n" for index in indices), encoding="ascii")
    for count, what in (
        (facts["truncated"], f"examples are truncated to {max_length} tokens"),
        (reader.quirks.empty_sentences, "examples have an empty sentence, as in the official file"),
        (len(reader.quirks.rejoined), "rows with line breaks inside were joined"),
        (len(reader.quirks.left_out), f"lines are pieces of rows and were skipped: {reader.quirks.left_out[:20]}"),
    ):
        if count:
            logger.warning("%s %s: %s %s", task, split, f"{count:,}", what)
    return {
        "name": task if split == "train" else submission_name(task, split),
        "file": source.path.name,
        **facts,
        "empty_sentences": reader.quirks.empty_sentences,
        "rejoined_rows": reader.quirks.rejoined,
        "lines_left_out": reader.quirks.left_out,
    }


def _check_count(rows: int, source: _Source) -> None:
    if source.rows and rows not in source.rows:
        official = " or ".join(f"{count:,}" for count in source.rows)
        held_out = "" if source.table.held_out is None else f" (split by {' or '.join(DEV_IDS_FILES)})"
        raise CorpusError(
            f"{source.path}{held_out} has {rows:,} examples, but the official file has {official}: the file is "
            "incomplete or another version. --accept-counts accepts it"
        )
