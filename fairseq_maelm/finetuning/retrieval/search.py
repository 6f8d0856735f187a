"""Exact search for the documents with the highest scores, and the sub-command ``maelm search``."""

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_maelm.arguments import add_device, add_output, existing_path, number
from fairseq_maelm.data.token_files import read_arrays
from fairseq_maelm.files import atomic_file, refuse_existing
from fairseq_maelm.finetuning.retrieval.prepared import read_identifiers
from fairseq_maelm.finetuning.retrieval.reading import write_results
from fairseq_maelm.prepared_folder import read_manifest

logger = logging.getLogger(__name__)

EMBEDDINGS = "embeddings.npy"
IDENTIFIERS = "ids.txt"

# Numbers of texts to process at a time; they limit the memory.
_QUERIES, _DOCUMENTS = 512, 16_384


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest of each row <float>[Q, n], descending, and their columns <int64>[Q, k]; ties by column."""
    k = min(k, scores.shape[1])
    values, columns = scores.topk(k, dim=1)
    # topk breaks ties with the lowest chosen score arbitrarily, so rows with such ties are sorted completely.
    lowest = values[:, -1:]
    undecided = (scores == lowest).sum(dim=1) > (values == lowest).sum(dim=1)
    if bool(undecided.any()):
        whole = scores[undecided].sort(dim=1, descending=True, stable=True)
        values[undecided], columns[undecided] = whole.values[:, :k], whole.indices[:, :k]
    return _ordered(values, columns)


def _ordered(values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by descending value, ties by row; both [Q, n]."""
    rows, by_row = rows.sort(dim=1)
    values, by_value = values.gather(1, by_row).sort(dim=1, descending=True, stable=True)
    return values, rows.gather(1, by_value)


def merge(values: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest scores <float>[Q, n] of documents, given by their rows <int64>[Q, n], without duplicates.

    Ties are ordered by row. With fewer documents than k, the last scores are -inf.
    """
    rows, by_row = rows.sort(dim=1)
    values = values.gather(1, by_row)
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    values, rows = _ordered(values.masked_fill(repeated, float("-inf")), rows)
    return values[:, :k], rows[:, :k]


def search(queries: Tensor, blocks: Iterable[tuple[int, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Find each query's best documents by the dot product of embeddings.

    Args:
        queries: <float>[Q, D].
        blocks: the row of the first document of each block, and the block <float>[n, D]; in the order of the rows.
        k: maximum number of documents per query.

    Returns:
        scores <float32>[Q, k], descending, and rows <int64>[Q, k] of the documents; ties in the order of the rows.
    """
    queries = queries.float()
    values = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first, documents in blocks:
        scores = queries @ documents.to(queries.device).float().T
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("embeddings or their products are not finite: embed the texts again")
        new_values, columns = best(scores, k)
        values, rows = _ordered(torch.cat([values, new_values], dim=1), torch.cat([rows, columns + first], dim=1))
        values, rows = values[:, :k], rows[:, :k]
    return values, rows


def blocks_of(embeddings: np.ndarray, size: int) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of ``size`` rows of <float>[N, D], which may be mapped from a file; see ``search``."""
    for first in range(0, len(embeddings), size):
        yield first, torch.from_numpy(np.array(embeddings[first : first + size]))


class Embeddings(NamedTuple):
    """Embedded texts."""

    rows: np.ndarray  # <float16 or float32>[texts, D], mapped from the file
    identifiers: list[str]  # of the texts
    space: dict[str, Any]  # dimension, pooling, similarity and checkpoint, equal for embeddings that can be compared


def open_embeddings(folder: Path) -> Embeddings:
    """Open a finished folder of ``maelm embed``."""
    manifest = read_manifest(folder, "embeddings")
    rows = read_arrays(folder / EMBEDDINGS, mapped=True)
    identifiers = read_identifiers(folder / IDENTIFIERS)
    if rows.shape != (manifest["texts"], manifest["dimension"]) or len(identifiers) != len(rows):
        raise ValueError(
            f"the files in {folder} do not belong together: they have {list(rows.shape)} embeddings, "
            f"{len(identifiers)} ids, and {manifest['texts']} texts in the manifest. Embed the texts again"
        )
    space = {"dimension": manifest["dimension"], "checkpoint": manifest["files"]["checkpoint"][0]["sha256"]}
    return Embeddings(
        rows, identifiers, {**space, **{name: manifest["settings"][name] for name in ("pooling", "similarity")}}
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm search``."""
    parser.description = (
        "Finds the documents with the highest similarity to each query, by exact search, and writes a TREC run file. "
        "Documents are read in blocks, so that memory does not grow with their number."
    )
    parser.add_argument("queries", type=existing_path, metavar="QUERIES", help="folder written by `maelm embed`")
    parser.add_argument(
        "documents",
        type=existing_path,
        metavar="DOCUMENTS",
        help="folder written by `maelm embed` with the same checkpoint",
    )
    add_output(parser, "new run file", metavar="FILE")
    parser.add_argument("--top-k", type=number(int, 1), default=100, metavar="K", help="number of documents per query")
    parser.add_argument(
        "--leave-out-same-id", action="store_true",
        help="exclude the document with the query's id, as BEIR does (for ArguAna and Quora)",
    )  # fmt: skip
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Search and write the run file's name to standard output."""
    refuse_existing(args.output)
    queries, documents = open_embeddings(args.queries), open_embeddings(args.documents)
    for name, theirs in queries.space.items():
        if theirs != documents.space[name]:
            raise ValueError(
                f"queries and documents were embedded differently and cannot be compared: {name} is {theirs!r} and "
                f"{documents.space[name]!r}"
            )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    _write_run(args, queries, documents)
    logger.info("searched %s documents for %s queries", f"{len(documents.rows):,}", f"{len(queries.rows):,}")
    sys.stdout.write(f"{args.output}\n")


def _write_run(args: argparse.Namespace, queries: Embeddings, documents: Embeddings) -> None:
    depth = args.top_k + bool(args.leave_out_same_id)
    with atomic_file(args.output) as stream, tqdm(total=len(queries.rows), unit=" queries") as progress:
        for first, block in blocks_of(queries.rows, _QUERIES):
            scores, found = search(block.to(torch.device(args.device)), blocks_of(documents.rows, _DOCUMENTS), depth)
            for query, values, rows in zip(queries.identifiers[first:], scores.tolist(), found.tolist()):
                pairs = [(documents.identifiers[row], value) for row, value in zip(rows, values)]
                if args.leave_out_same_id:
                    pairs = [pair for pair in pairs if pair[0] != query]
                write_results(stream, query, pairs[: args.top_k])
            progress.update(len(block))
