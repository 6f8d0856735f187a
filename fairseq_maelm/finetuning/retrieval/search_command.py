"""The sub-command ``maelm search``, and the reader of folders of ``maelm embed``."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from fairseq_maelm.arguments import add_device, add_output, existing_path, number
from fairseq_maelm.data.stored import read_arrays
from fairseq_maelm.files import atomic_file, refuse_existing
from fairseq_maelm.finetuning.retrieval.prepared import read_identifiers
from fairseq_maelm.finetuning.retrieval.reading import write_results
from fairseq_maelm.finetuning.retrieval.search import blocks_of, search
from fairseq_maelm.prepared_folder import read_manifest

logger = logging.getLogger(__name__)

EMBEDDINGS = "embeddings.npy"
IDENTIFIERS = "ids.txt"

# Numbers of texts to process at a time; they limit the memory.
_QUERIES, _DOCUMENTS = 512, 16_384


class Embeddings(NamedTuple):
    """Embedded texts.

    Attributes:
        rows: <float16 or float32>[texts, D], mapped from the file.
        identifiers: ids of the texts.
        space: dimension, pooling, similarity and checkpoint, which must be equal for embeddings to be compared.
    """

    rows: np.ndarray
    identifiers: list[str]
    space: dict[str, Any]


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
    parser.add_argument("queries", type=existing_path, metavar="QUERIES", help="folder of `maelm embed`")
    parser.add_argument(
        "documents", type=existing_path, metavar="DOCUMENTS", help="folder of `maelm embed` with the same checkpoint"
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
