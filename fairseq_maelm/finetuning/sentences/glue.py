"""The preparation of task folders from GLUE's official files (Wang et al., 2018)."""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import CorpusError
from fairseq_maelm.finetuning.glue_layout import DEV_IDS_FILES, HIGHEST_SCORE, TASKS, Quirks, Table, read_glue
from fairseq_maelm.finetuning.sentences.prepare import label_dictionary, write_task
from fairseq_maelm.finetuning.sentences.settings import GlueSettings
from fairseq_maelm.finetuning.task_folder import prepare_task_folder
from fairseq_maelm.text.vocabulary import TextEncoder

logger = logging.getLogger(__name__)


def prepare_task(task: str, settings: GlueSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Prepare one task and return its manifest; keep a folder that was made from the same files."""
    tables, definition = _tables(task, settings), TASKS[task]

    def write(folder: Path, encoder: TextEncoder) -> dict[str, Any]:
        labels = None if definition.labels is None else label_dictionary(definition.labels)
        quirks = {split: Quirks() for split in tables}
        sources = {
            split: (path, read_glue(path, table, definition, quirks[split])) for split, (path, table) in tables.items()
        }
        texts = 1 if tables["train"][1].columns.text_pair is None else 2
        # Scores are stored in [0, 1], as for fairseq's RoBERTa.
        scale = None if labels is not None else HIGHEST_SCORE
        facts = write_task(folder, encoder, sources, labels, texts, settings.max_length, scale)
        for split, own in facts["splits"].items():
            path, table = tables[split]
            _check_count(own["examples"] - len(quirks[split].rejoined), path, table)
            own |= {"file": path.name, **asdict(quirks[split])}
            _report(f"{task} {split}", quirks[split])
        return {"task": task, **facts}

    chosen, files = (
        {"task": task, "max_length": settings.max_length},
        {split: path for split, (path, _) in tables.items()},
    )
    return prepare_task_folder(output, "glue", chosen, files, vocabulary, write, "input0")


def _report(split: str, quirks: Quirks) -> None:
    for count, what in (
        (quirks.empty_sentences, "examples have an empty sentence, as in the official file"),
        (len(quirks.rejoined), "rows with line breaks inside were joined"),
        (len(quirks.left_out), f"lines are pieces of rows and were skipped: {quirks.left_out[:20]}"),
    ):
        if count:
            logger.warning("%s: %s %s", split, f"{count:,}", what)


def _tables(task: str, settings: GlueSettings) -> dict[str, tuple[Path, Table]]:
    """Return the file of each split and its table, whose ``rows`` are empty if any number of rows is allowed."""
    folder, train_files, found = settings.glue / task, dict(settings.train_file), {}
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
            f"{path}{held_out} has {rows:,} examples, but the official file has {official}: the file is "
            "incomplete or another version. --accept-counts accepts it"
        )
