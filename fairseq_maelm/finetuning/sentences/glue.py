"""GLUE's eight tasks (Wang et al., 2018) as tables, with their columns, labels and official row counts."""

import argparse
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.files.lines import numbered_lines
from fairseq_maelm.finetuning.sentences.kind import SHORTEST
from fairseq_maelm.finetuning.tables import ColumnsWithId, Example, Row, read_table, table_rows
from fairseq_maelm.options import by_name, existing_path, option
from fairseq_maelm.text.vocabulary import TextEncoder

logger = logging.getLogger(__name__)

HIGHEST_SCORE = 5.0  # of STS-B; the lowest is 0

DEV_IDS_FILES = ("dev_ids.tsv", "mrpc_dev_ids.tsv")


@dataclass(frozen=True)
class Table:
    """The layout of one task file."""

    file: str  # name in the task's folder
    columns: ColumnsWithId  # of the sentences, the label, and the example index for submissions
    rows: Sequence[int]  # the official number of examples; several numbers if several versions are in use
    header: Sequence[str] = ()  # names of the columns, for a file without a header
    held_out: bool | None = None  # True for the rows that dev_ids.tsv lists, False for the others, None for all


@dataclass(frozen=True)
class GlueTask:
    """A task's labels and tables."""

    labels: list[str] | None  # class names in the order of the class indices; None for STS-B's scores
    # Split -> candidate files, of which the first existing one is used. Splits have fairseq's names: train, valid, test
    # and, for MNLI mismatched, valid1 and test1.
    tables: dict[str, list[Table]]
    irregular: bool = False  # whether official files have empty sentences, and line breaks that split rows


@dataclass
class Quirks:
    """Irregular rows of a file."""

    rejoined: list[int] = field(default_factory=list)  # first lines of rows that were joined from several lines
    left_out: list[int] = field(default_factory=list)  # lines with fragments of rows that cannot be joined
    empty_sentences: int = 0  # number of rows with an empty sentence


def _read_tasks() -> dict[str, GlueTask]:
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

    def table(file: dict[str, Any]) -> Table:
        return Table(**{**file, "columns": ColumnsWithId(**file["columns"])})

    for task in content.values():
        task["tables"] = {split: list(map(table, files)) for split, files in task["tables"].items()}
    return {name: GlueTask(**task) for name, task in content.items()}


TASKS = _read_tasks()


def _train_file(text: str) -> tuple[str, Path]:
    task, _, path = text.partition("=")
    if task not in TASKS or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be TASK=FILE, such as QNLI=train.tsv, where TASK is one of {', '.join(TASKS)}"
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
        (),
        help=f"tasks to prepare, from {', '.join(TASKS)} (default: all with a folder in GLUE)",
        metavar="TASK",
        choices=TASKS,
    )
    max_length: int = option(
        512, help="maximum number of tokens in an example; longer examples are truncated", minimum=SHORTEST
    )
    train_file: tuple[tuple[str, Path], ...] = option(
        (), help="training file to read instead of a task's official one, with the same columns and any number of rows",
        metavar="TASK=FILE", type=_train_file,
    )  # fmt: skip
    accept_counts: bool = option(False, help="accept files whose numbers of rows differ from the official ones")


def prepare_task(
    task: str, settings: GlueSettings, vocabulary: Path, output: Path, allow_unknown: bool = False
) -> dict[str, Any]:
    """Prepare one task and return its manifest; reuse a folder that was made from the same files."""
    # These take seconds to import.
    from fairseq_maelm.finetuning.sentences.prepare import write_task
    from fairseq_maelm.finetuning.task_folder import prepare_task_folder
    from fairseq_maelm.models.labels import Classes, Numbers

    tables, definition = _chosen_tables(task, settings), TASKS[task]

    def write(folder: Path, encoder: TextEncoder) -> dict[str, Any]:
        # Scores are stored in [0, 1], as for fairseq's RoBERTa.
        scores = Numbers(scale=HIGHEST_SCORE, bounds=(0.0, HIGHEST_SCORE))
        labels = scores if definition.labels is None else Classes(tuple(definition.labels))
        quirks = {split: Quirks() for split in tables}
        sources = {
            split: (path, read_glue(path, table, definition, quirks[split])) for split, (path, table) in tables.items()
        }
        texts = 1 if tables["train"][1].columns.text_pair is None else 2
        facts = write_task(folder, encoder, sources, labels, texts, settings.max_length)
        for split, own in facts["splits"].items():
            path, table = tables[split]
            _check_count(own["examples"] - len(quirks[split].rejoined), path, table)
            own |= {"file": path.name, **asdict(quirks[split])}
            _report(f"{task} {split}", quirks[split])
        return {"task": task, **facts}

    options = {"task": task, "max_length": settings.max_length}
    files = {split: path for split, (path, _) in tables.items()}
    return prepare_task_folder(output, "glue", options, files, vocabulary, write, "input0", allow_unknown)


def _report(split: str, quirks: Quirks) -> None:
    for count, what in (
        (quirks.empty_sentences, "examples have an empty sentence, as in the official file"),
        (len(quirks.rejoined), "rows with line breaks inside were joined"),
        (len(quirks.left_out), f"lines are pieces of rows and were skipped: {quirks.left_out[:20]}"),
    ):
        if count:
            logger.warning("%s: %s %s", split, f"{count:,}", what)


def _chosen_tables(task: str, settings: GlueSettings) -> dict[str, tuple[Path, Table]]:
    """Return a dict split -> (file, table); ``rows`` of the table are empty if any row count is accepted."""
    folder, train_files, found = settings.glue / task, by_name(settings.train_file, "--train-file"), {}
    for split, tables in TASKS[task].tables.items():
        if split == "train" and task in train_files:
            found[split] = train_files[task], replace(tables[0], rows=())
            continue
        table = next((each for each in tables if (folder / each.file).is_file()), None)
        if table is None and split.startswith("test"):
            logger.warning("%s: there is no %s, so there will be no predictions for it", task, folder / tables[0].file)
        elif table is None:
            raise FileNotFoundError(f"there is no {' and no '.join(str(folder / each.file) for each in tables)}")
        else:
            found[split] = folder / table.file, replace(table, rows=()) if settings.accept_counts else table
    return found


def _check_count(rows: int, path: Path, table: Table) -> None:
    if table.rows and rows not in table.rows:
        official = " or ".join(f"{count:,}" for count in table.rows)
        held_out = "" if table.held_out is None else f" (split by {' or '.join(DEV_IDS_FILES)})"
        raise CorpusError(
            f"{path}{held_out} has {rows:,} examples, but the official file has {official}: the file is incomplete, "
            "or not the official version. To use it anyway, give --accept-counts"
        )


def read_glue(path: Path, table: Table, task: GlueTask, quirks: Quirks) -> Iterator[Example]:
    """Yield the examples of a file, with their indices as ids, and add irregular rows to ``quirks``."""
    rows = table_rows(path)
    if table.header:
        rows = itertools.chain([(str(path), table.header)], rows)
    if task.irregular:
        rows = _rejoined(rows, task, quirks)
    if table.held_out is not None:
        pairs = _read_dev_pairs(path.parent)
        # The header, and the rows whose second and third cell are, or are not, a pair of the dev set.
        rows = (row for count, row in enumerate(rows) if not count or (tuple(row[1][1:3]) in pairs) == table.held_out)
    # Accepts empty sentences: a tuple of empty texts is true.
    examples = read_table(path, table.columns, complete=bool if task.irregular else all, rows=rows)
    for count, example in enumerate(examples):
        identity = str(count) if example.id is None else example.id
        if not identity.isdigit():
            raise CorpusError(f"{example.place} has the index {identity!r}, which is not a number")
        quirks.empty_sentences += not all(example.texts)
        yield example._replace(id=identity)


def _rejoined(rows: Iterator[Row], task: GlueTask, quirks: Quirks) -> Iterator[Row]:
    """Join rows that were split by line breaks; a complete row starts with a number and ends with a label."""
    header = next(rows, None)
    if header is None:
        return
    yield header
    width, labels = len(header[1]), task.labels if "is_duplicate" in header[1] else None
    pieces: list[Row] = []

    def leave_out() -> None:
        quirks.left_out.extend(_line(place) for place, _ in pieces)
        pieces.clear()

    for row in rows:
        if len(row[1]) == width:
            leave_out()
            yield row
            continue
        pieces.append(row)
        joined = " ".join("\t".join(cells) for _, cells in pieces).split("\t")
        if len(joined) == width and joined[0].strip().isdigit() and (not labels or joined[-1].strip() in labels):
            quirks.rejoined.append(_line(pieces[0][0]))
            yield pieces[0][0], joined
            pieces.clear()
        elif len(joined) >= width:
            leave_out()
    leave_out()


def _line(place: str) -> int:
    return int(place.rpartition(":")[2])


def _read_dev_pairs(folder: Path) -> set[tuple[str, ...]]:
    """Read GLUE's list of MRPC's dev set, as pairs of sentence ids."""
    path = next((folder / name for name in DEV_IDS_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has MRPC as Microsoft distributes it, where dev and train are one file: put GLUE's list of the "
            f"dev set, {DEV_IDS_FILES[0]}, into this folder"
        )
    pairs: set[tuple[str, ...]] = set()
    for number, line in numbered_lines(path, blank=False):
        pair = tuple(line.split())
        if len(pair) != 2:
            raise CorpusError(f"{path}:{number} is not a pair of sentence numbers")
        pairs.add(pair)
    return pairs
