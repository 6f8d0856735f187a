"""The sub-command ``maelm prepare retrieval``: from BEIR's layout to the folder of the task ``maelm_retrieval``."""

import argparse
import hashlib
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import indexed_dataset

from fairseq_maelm.arguments import (
    UsageError,
    add_output,
    add_settings,
    add_verify,
    add_vocabulary,
    check_limits,
    existing_path,
    option,
    settings_of,
)
from fairseq_maelm.finetuning.retrieval.prepared import (
    NEGATIVES,
    group_pairs,
    group_relevant,
    identifiers_file,
    judgments_file,
    write_identifiers,
)
from fairseq_maelm.finetuning.retrieval.reading import HEADER, read_judgments, read_negatives, read_texts, rows_of
from fairseq_maelm.finetuning.sentence_data import encoded
from fairseq_maelm.prepared_folder import made_from, prepare_folder, verify_outputs
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files
from fairseq_maelm.text.vocabulary import UNKNOWN

logger = logging.getLogger(__name__)

_SOURCES = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}
# Name of a split in this package -> in BEIR.
_SPLITS = {"train": "train", "valid": "dev", "test": "test"}

# "documents" and "queries" -> id -> row.
Rows = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class RetrievalSettings:
    """The options of ``maelm prepare retrieval``."""

    beir: Path = option(
        help="folder with corpus.jsonl, queries.jsonl and qrels/", positional=True, type=existing_path, metavar="BEIR"
    )
    valid_fraction: float | None = option(
        None, minimum=0.001, maximum=0.999,
        help="fraction of the training queries to hold out for validation, if there is no qrels/dev.tsv",
    )  # fmt: skip
    seed: int = option(1, minimum=0, help="random seed of the held-out queries")
    hard_negatives: Path | None = option(
        None, type=existing_path, metavar="FILE",
        help="hard negatives: lines of 'query-id TAB corpus-id', or a run file of `maelm search`, best first",
    )  # fmt: skip
    negatives_per_query: int = option(50, minimum=1, help="maximum number of hard negatives to keep per query")
    allow_empty: bool = option(False, help="accept empty texts")

    def __post_init__(self) -> None:
        check_limits(self)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare retrieval``."""
    parser.description = (
        "Checks a retrieval task in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/train.tsv, dev.tsv, test.tsv) "
        "and encodes it into a task folder for fine-tuning."
    )
    add_vocabulary(parser, required=True)
    add_output(parser, "new folder for the task")
    add_settings(parser, RetrievalSettings)
    add_verify(parser)


def run(args: argparse.Namespace) -> None:
    """Prepare the task and write the folder's name to standard output."""
    facts = prepare_retrieval(settings_of(RetrievalSettings, args), args.vocabulary, args.output)
    for texts in _SOURCES:
        counts = facts[texts]
        length, share = counts["tokens"] / counts["texts"], 100 * counts["unknown_tokens"] / counts["tokens"]
        logger.info("%s: %s texts of %.1f tokens, %.4f %% unknown", texts, f"{counts['texts']:,}", length, share)
    for split, counts in facts["splits"].items():
        logger.info("%s: %d queries, %d relevant pairs", split, counts["queries"], counts["relevant_pairs"])
    if "negatives" in facts:
        logger.info(
            "hard negatives: %(taken)d for %(queries)d training queries; skipped: %(relevant)d relevant documents, "
            "%(of_other_queries)d for other queries",
            facts["negatives"],
        )
    if args.verify:
        verify_outputs(args.output)
    sys.stdout.write(f"{args.output}\n")


def prepare_retrieval(settings: RetrievalSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Check and binarize a retrieval task, and return the folder's manifest, with counts.

    A folder that was made from the same files is kept.
    """
    judgments = _qrels_of(settings)
    files = {
        **{texts: [_source(settings, texts)] for texts in _SOURCES},
        **{split: [path] for split, path in judgments.items()},
        "hard_negatives": [settings.hard_negatives] if settings.hard_negatives else [],
        "vocabulary": vocabulary_files(vocabulary),
    }
    names = ("valid_fraction", "seed", "negatives_per_query", "allow_empty")
    origin = made_from({name: getattr(settings, name) for name in names}, files)
    return prepare_folder(
        output, "retrieval", origin, lambda folder: _write_task(settings, vocabulary, judgments, folder)
    )


def _qrels_of(settings: RetrievalSettings) -> dict[str, Path]:
    """Return the existing qrels files by split, and check the options that depend on them."""
    files = {split: settings.beir / "qrels" / f"{name}.tsv" for split, name in _SPLITS.items()}
    found = {split: path for split, path in files.items() if path.exists()}
    if not found:
        raise FileNotFoundError(f"there are no judgments: give at least one of {', '.join(map(str, files.values()))}")
    if settings.valid_fraction is not None and "valid" in found:
        raise UsageError(f"{found['valid']} exists: leave out --valid-fraction, or remove that file")
    for name in ("valid_fraction", "hard_negatives"):
        if getattr(settings, name) is not None and "train" not in found:
            raise UsageError(f"--{name.replace('_', '-')} needs training queries, but there is no {files['train']}")
    if "valid" not in found and "train" in found and settings.valid_fraction is None:
        logger.warning(
            "there is no %s, so training cannot choose its best checkpoint; --valid-fraction 0.1 holds out training "
            "queries",
            files["valid"],
        )
    return found


def _source(settings: RetrievalSettings, texts: str) -> Path:
    path = settings.beir / _SOURCES[texts]
    compressed = path.with_name(path.name + ".gz")
    found = compressed if compressed.exists() and not path.exists() else path
    if not found.is_file():
        raise FileNotFoundError(f"there is no file {found}")
    return found


def _write_task(
    settings: RetrievalSettings, vocabulary: Path, judgments: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    encoder = open_encoder(vocabulary)
    facts: dict[str, Any] = {}
    rows: dict[str, dict[str, int]] = {}
    for texts in _SOURCES:
        rows[texts], facts[texts] = _write_texts(settings, texts, folder, encoder)
    tables = _hold_out(settings, {split: _table(path, rows) for split, path in judgments.items()}, rows)
    (folder / "qrels").mkdir()
    facts["splits"] = {split: _write_split(tables[split], split, rows, folder) for split in _SPLITS if split in tables}
    if settings.hard_negatives is not None:
        relevant = group_relevant(tables["train"])
        negatives, counts = read_negatives(settings.hard_negatives, rows, relevant, settings.negatives_per_query)
        if not len(negatives):
            raise ValueError(f"{settings.hard_negatives} has no hard negative for any training query")
        np.save(folder / NEGATIVES, negatives)
        facts["negatives"] = {**counts, "queries": len(group_pairs(negatives))}
    for path in vocabulary_files(vocabulary):
        shutil.copy(path, folder / path.name)
    return facts


def _write_texts(
    settings: RetrievalSettings, texts: str, folder: Path, encoder: TextEncoder
) -> tuple[dict[str, int], dict[str, int]]:
    """Binarize queries or documents, and return id -> row, and counts."""
    prefix, source = folder / texts, _source(settings, texts)
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=encoder.dictionary_size)
    rows: dict[str, int] = {}
    tokens_in_all = unknown = 0
    records = read_texts(source, settings.allow_empty)
    for record, (tokens,) in encoded(records, lambda each: [each.text], encoder, texts):
        builder.add_item(torch.from_numpy(tokens.astype("int64")))
        tokens_in_all += len(tokens)
        unknown += int((tokens == UNKNOWN).sum())
        rows[record.identifier] = len(rows)
    if not rows:
        raise ValueError(f"{source} has no texts")
    builder.finalize(f"{prefix}.idx")
    write_identifiers(identifiers_file(folder, texts), rows)
    return rows, {"texts": len(rows), "tokens": tokens_in_all, "unknown_tokens": unknown}


def _table(path: Path, rows: Rows) -> np.ndarray:
    """Read judgments as <int64>[n, 3], query row, document row and score, sorted."""
    lines = [(*rows_of(line, rows), line.score) for line in read_judgments(path)]
    if not any(score > 0 for _, _, score in lines):
        raise ValueError(f"{path} has no relevant document: at least one score must be above zero")
    return np.array(sorted(lines), dtype=np.int64)


def held_out(identifiers: list[str], fraction: float, seed: int) -> set[str]:
    """Choose round(fraction * n) of n queries, at least one and not all.

    Queries are ranked by a hash of seed and id, so that their order and other queries do not affect the ranking.
    """
    ranked = sorted(identifiers, key=lambda each: hashlib.blake2b(f"{seed} {each}".encode()).digest())
    if len(ranked) < 2:
        raise ValueError("--valid-fraction needs at least two training queries")
    return set(ranked[: min(max(1, round(fraction * len(ranked))), len(ranked) - 1)])


def _hold_out(settings: RetrievalSettings, tables: dict[str, np.ndarray], rows: Rows) -> dict[str, np.ndarray]:
    """Move a fraction of the training queries, with all their judgments, to validation, if requested."""
    if settings.valid_fraction is None:
        if {"train", "valid"} <= tables.keys():
            common = len(np.intersect1d(tables["train"][:, 0], tables["valid"][:, 0]))
            if common:
                logger.warning("%d queries are both in training and in validation", common)
        return tables
    identifiers, train = list(rows["queries"]), tables["train"]
    chosen = held_out([identifiers[row] for row in np.unique(train[:, 0])], settings.valid_fraction, settings.seed)
    out = np.isin(train[:, 0], [rows["queries"][identifier] for identifier in chosen])
    return {**tables, "train": train[~out], "valid": train[out]}


def _write_split(table: np.ndarray, split: str, rows: Rows, folder: Path) -> dict[str, int]:
    """Write a split's judgments as rows and, in BEIR's layout, as ids, and return counts."""
    queries, documents = list(rows["queries"]), list(rows["documents"])
    np.save(judgments_file(folder, split), table)
    lines = ["\t".join(HEADER)]
    lines += [f"{queries[query]}\t{documents[document]}\t{score}" for query, document, score in table.tolist()]
    path = folder / "qrels" / f"{split}.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    counts = [len(each) for each in group_relevant(table).values()]
    if 0 in counts:
        logger.warning("%s: %d queries have no relevant document", split, counts.count(0))
    return {
        "queries": len(counts),
        "judgments": len(table),
        "relevant_pairs": sum(counts),
        "queries_without_relevant_document": counts.count(0),
    }
