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
# Our names of the splits -> BEIR's.
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
        help="share of the training queries to hold out for validation, where there is no qrels/dev.tsv",
    )  # fmt: skip
    seed: int = option(1, minimum=0, help="random seed of the queries that are held out")
    hard_negatives: Path | None = option(
        None, type=existing_path, metavar="FILE",
        help="hard negatives: 'query-id TAB corpus-id' a line, or a run file of `maelm search`, the best first",
    )  # fmt: skip
    negatives_per_query: int = option(50, minimum=1, help="number of hard negatives to keep of each query")
    allow_empty: bool = option(False, help="keep empty texts instead of stopping at them")

    def __post_init__(self) -> None:
        check_limits(self)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare retrieval``."""
    parser.description = (
        "Checks a retrieval task in BEIR layout (corpus.jsonl, queries.jsonl, qrels/train.tsv, dev.tsv, test.tsv) and "
        "binarizes it with an encoder's vocabulary, for `maelm finetune`."
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
            "hard negatives: %(taken)d of %(queries)d training queries; left out: %(relevant)d known to be relevant, "
            "%(of_other_queries)d of other queries",
            facts["negatives"],
        )
    if args.verify:
        verify_outputs(args.output)
    sys.stdout.write(f"{args.output}\n")


def prepare_retrieval(settings: RetrievalSettings, vocabulary: Path, output: Path) -> dict[str, Any]:
    """Check and binarize a retrieval task; nothing is done when it is there already, made from the same files.

    Returns:
        the folder's manifest, with counts.
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
    """Return the qrels files that there are, by split; check the options that depend on them."""
    files = {split: settings.beir / "qrels" / f"{name}.tsv" for split, name in _SPLITS.items()}
    found = {split: path for split, path in files.items() if path.exists()}
    if not found:
        raise FileNotFoundError(f"there is none of {', '.join(map(str, files.values()))}")
    if settings.valid_fraction is not None:
        if "valid" in found:
            raise UsageError(f"there is {found['valid']}: leave --valid-fraction away, or remove that file")
        if "train" not in found:
            raise UsageError(f"--valid-fraction holds out training queries, and there is no {files['train']}")
    elif "valid" not in found and "train" in found:
        logger.warning(
            "there is no %s: training has nothing to choose its best checkpoint by. --valid-fraction 0.1 holds out "
            "training queries",
            files["valid"],
        )
    if settings.hard_negatives is not None and "train" not in found:
        raise UsageError(f"--hard-negatives are for training, and there is no {files['train']}")
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
            raise ValueError(f"{settings.hard_negatives} holds no hard negative of any training query")
        np.save(folder / NEGATIVES, negatives)
        facts["negatives"] = {**counts, "queries": len(group_pairs(negatives))}
    for path in vocabulary_files(vocabulary):
        shutil.copy(path, folder / path.name)
    return facts


def _write_texts(
    settings: RetrievalSettings, texts: str, folder: Path, encoder: TextEncoder
) -> tuple[dict[str, int], dict[str, int]]:
    """Binarize queries or documents; return the row of each id, and counts."""
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
        raise ValueError(f"{source} holds no texts")
    builder.finalize(f"{prefix}.idx")
    write_identifiers(identifiers_file(folder, texts), rows)
    return rows, {"texts": len(rows), "tokens": tokens_in_all, "unknown_tokens": unknown}


def _table(path: Path, rows: Rows) -> np.ndarray:
    """Read judgments as <int64>[n, 3], query row, document row and score, sorted."""
    lines = [(*rows_of(line, rows), line.score) for line in read_judgments(path)]
    if not any(score > 0 for _, _, score in lines):
        raise ValueError(f"{path} holds no relevant document: scores above zero are relevant")
    return np.array(sorted(lines), dtype=np.int64)


def held_out(identifiers: list[str], fraction: float, seed: int) -> set[str]:
    """Choose round(fraction * n) of n queries, at least one and not all.

    A hash of seed and id decides: neither the order of the queries nor other queries change which ones come first.
    """
    ranked = sorted(identifiers, key=lambda each: hashlib.blake2b(f"{seed} {each}".encode()).digest())
    if len(ranked) < 2:
        raise ValueError("--valid-fraction needs two training queries at least")
    return set(ranked[: min(max(1, round(fraction * len(ranked))), len(ranked) - 1)])


def _hold_out(settings: RetrievalSettings, tables: dict[str, np.ndarray], rows: Rows) -> dict[str, np.ndarray]:
    """Move training queries with all their judgments to validation, if that was asked for."""
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
    """Write a split's judgments as rows and, in BEIR's layout, as ids; return counts."""
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
