"""From BEIR layout to the folder that the task ``maelm_retrieval`` reads."""

import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import indexed_dataset

from fairseq_maelm.finetuning.retrieval.beir import HEADER, read_judgments, read_texts, rows_of
from fairseq_maelm.finetuning.retrieval.negatives import read_negatives
from fairseq_maelm.finetuning.retrieval.prepared import (
    NEGATIVES,
    SPLITS,
    TEXTS,
    group_pairs,
    group_relevant,
    identifiers_file,
    judgments_file,
    qrels_file,
    write_identifiers,
)
from fairseq_maelm.finetuning.sentence_data import encoded
from fairseq_maelm.prepared_folder import made_from, prepare_folder
from fairseq_maelm.text.imported import TextEncoder, open_encoder, vocabulary_files
from fairseq_maelm.text.vocabulary import UNKNOWN

logger = logging.getLogger(__name__)

_SOURCES = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}
_SOURCE_SPLITS = {"train": "train", "valid": "dev", "test": "test"}


@dataclass(frozen=True)
class RetrievalSettings:
    """What ``prepare_retrieval`` does: the options of ``maelm prepare retrieval``, which explains them."""

    beir: Path
    data: Path
    output: Path
    valid_fraction: float | None = None
    seed: int = 1
    hard_negatives: Path | None = None
    negatives_per_query: int = 50
    allow_empty: bool = False


def prepare_retrieval(settings: RetrievalSettings) -> dict[str, Any]:
    """Check and binarize a retrieval task; nothing is done when it is there already, made from the same files.

    Returns:
        the folder's manifest with texts, tokens, unknown tokens, and for each split its queries, judgments and relevant
        pairs.
    """
    judgments = _qrels_of(settings)
    files = {
        **{texts: [_source(settings, texts)] for texts in TEXTS},
        **{split: [path] for split, path in judgments.items()},
        "hard_negatives": [] if settings.hard_negatives is None else [settings.hard_negatives],
        "vocabulary": vocabulary_files(settings.data),
    }
    names = ("valid_fraction", "seed", "negatives_per_query", "allow_empty")
    origin = made_from({name: getattr(settings, name) for name in names}, files)
    return prepare_folder(settings.output, "retrieval", origin, lambda folder: _write_task(settings, judgments, folder))


def _write_task(settings: RetrievalSettings, judgments: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    encoder = open_encoder(settings.data)
    (folder / "qrels").mkdir()
    facts: dict[str, Any] = {}
    rows = {}
    for texts in TEXTS:
        rows[texts], facts[texts] = _write_texts(settings, texts, folder, encoder)
    tables = {split: _table(path, rows) for split, path in judgments.items()}
    facts["splits"] = _write_splits(settings, _with_validation(settings, tables, rows), rows, folder)
    if settings.hard_negatives is not None:
        facts["negatives"] = _write_negatives(settings, rows, folder)
    for path in vocabulary_files(settings.data):
        shutil.copy(path, folder / path.name)
    return facts


def _qrels_of(settings: RetrievalSettings) -> dict[str, Path]:
    """The qrels files that there are, by our names of the splits; checks the options that depend on them."""
    files = {split: settings.beir / "qrels" / f"{name}.tsv" for split, name in _SOURCE_SPLITS.items()}
    found = {split: path for split, path in files.items() if path.exists()}
    if not found:
        raise FileNotFoundError(f"there is none of {', '.join(map(str, files.values()))}")
    fraction = settings.valid_fraction
    if fraction is not None:
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"--valid-fraction must lie between 0 and 1 and is {fraction}")
        if "valid" in found:
            raise ValueError(f"there is {found['valid']}: leave --valid-fraction away, or remove that file")
        if "train" not in found:
            raise ValueError(f"--valid-fraction holds out training queries, and there is no {files['train']}")
    elif "valid" not in found and "train" in found:
        logger.warning(
            "there is no %s: training has nothing to choose its best checkpoint by. --valid-fraction 0.1 holds out "
            "training queries",
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


def _write_texts(
    settings: RetrievalSettings, texts: str, folder: Path, encoder: TextEncoder
) -> tuple[dict[str, int], dict[str, int]]:
    """Binarize queries or documents; return the row of each id, and counts."""
    prefix = folder / texts
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=encoder.dictionary_size)
    rows: dict[str, int] = {}
    counts = {"texts": 0, "tokens": 0, "unknown_tokens": 0}
    records = read_texts(_source(settings, texts), settings.allow_empty)
    for record, (tokens,) in encoded(records, lambda each: [each.text], encoder, texts):
        builder.add_item(torch.from_numpy(tokens.astype("int64")))
        counts["tokens"] += len(tokens)
        counts["unknown_tokens"] += int((tokens == UNKNOWN).sum())
        rows[record.identifier] = len(rows)
    if not rows:
        raise ValueError(f"{_source(settings, texts)} holds no texts")
    builder.finalize(f"{prefix}.idx")
    write_identifiers(identifiers_file(folder, texts), list(rows))
    return rows, {**counts, "texts": len(rows)}


def _table(path: Path, rows: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    """<int64>[n, 3] query row, document row, score, sorted."""
    lines = [(*rows_of(line, rows), line.score) for line in read_judgments(path)]
    if not any(score > 0 for _, _, score in lines):
        raise ValueError(f"{path} holds no relevant document: scores above zero are relevant")
    return np.array(sorted(lines), dtype=np.int64)


def held_out(identifiers: list[str], fraction: float, seed: int) -> set[str]:
    """Choose round(fraction * n) of n queries, at least one and not all, by a hash of seed and id: their order, and
    other queries, do not matter for which come first."""
    ranked = sorted(identifiers, key=lambda each: hashlib.blake2b(f"{seed} {each}".encode()).digest())
    if len(ranked) < 2:
        raise ValueError("--valid-fraction needs two training queries at least")
    return set(ranked[: min(max(1, round(fraction * len(ranked))), len(ranked) - 1)])


def _with_validation(
    settings: RetrievalSettings, tables: dict[str, np.ndarray], rows: Mapping[str, Mapping[str, int]]
) -> dict[str, np.ndarray]:
    """Hold out training queries, with all their judgments, if that was asked for."""
    if settings.valid_fraction is None:
        if {"train", "valid"} <= tables.keys():
            common = len(np.intersect1d(tables["train"][:, 0], tables["valid"][:, 0]))
            if common:
                logger.warning("%d queries are both in training and in validation", common)
        return tables
    identifiers = list(rows["queries"])
    train = tables["train"]
    chosen = held_out([identifiers[row] for row in np.unique(train[:, 0])], settings.valid_fraction, settings.seed)
    out = np.isin(train[:, 0], [rows["queries"][identifier] for identifier in chosen])
    return {**tables, "train": train[~out], "valid": train[out]}


def _write_splits(
    settings: RetrievalSettings, tables: dict[str, np.ndarray], rows: Mapping[str, Mapping[str, int]], folder: Path
) -> dict[str, dict[str, int]]:
    queries, documents = list(rows["queries"]), list(rows["documents"])
    facts = {}
    for split in SPLITS:
        if split not in tables:
            continue
        table = tables[split]
        np.save(judgments_file(folder, split), table)
        lines = ["\t".join(HEADER)]
        lines += [f"{queries[query]}\t{documents[document]}\t{score}" for query, document, score in table.tolist()]
        qrels_file(folder, split).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        relevant = group_relevant(table).relevant
        facts[split] = {
            "queries": len(relevant),
            "judgements": len(table),
            "relevant_pairs": sum(map(len, relevant)),
            "queries_without_relevant_document": sum(not len(each) for each in relevant),
        }
        if facts[split]["queries_without_relevant_document"]:
            logger.warning(
                "%s: %d queries have no relevant document", split, facts[split]["queries_without_relevant_document"]
            )
    return facts


def _write_negatives(
    settings: RetrievalSettings, rows: Mapping[str, Mapping[str, int]], folder: Path
) -> dict[str, int]:
    assert settings.hard_negatives is not None
    train = judgments_file(folder, "train")
    if not train.exists():
        raise ValueError("hard negatives are for training, and there is no qrels/train.tsv")
    pairs = group_relevant(np.load(train))
    relevant = {int(query): documents for query, documents in zip(*pairs)}
    negatives, facts = read_negatives(settings.hard_negatives, rows, relevant, settings.negatives_per_query)
    if not len(negatives):
        raise ValueError(f"{settings.hard_negatives} holds no hard negative of any training query")
    np.save(folder / NEGATIVES, negatives)
    return {**facts, "queries": len(group_pairs(negatives))}
