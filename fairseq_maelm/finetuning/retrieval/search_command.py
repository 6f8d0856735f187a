"""The sub-command ``maelm search``."""

import argparse
import logging
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import atomic_file, refuse_existing
from fairseq_maelm.finetuning.retrieval.embeddings import Embeddings, check_comparable, open_embeddings
from fairseq_maelm.finetuning.retrieval.runs import write_results
from fairseq_maelm.finetuning.retrieval.search import blocks_of, search

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm search``."""
    parser.description = (
        "Exact search: for every query the documents with the highest similarity among all, written as a TREC run "
        "file. Reads the documents block by block; memory depends on the options alone."
    )
    parser.add_argument("queries", type=Path, metavar="QUERIES", help="folder of `maelm embed`")
    parser.add_argument("documents", type=Path, metavar="DOCUMENTS", help="folder of `maelm embed`, same checkpoint")
    parser.add_argument("--output", required=True, type=Path, metavar="RUN", help="the new run file")
    parser.add_argument("--top-k", type=int, default=100, metavar="K", help="documents of a query (100)")
    parser.add_argument("--tag", default="maelm", help="name of the run in its last column (maelm)")
    parser.add_argument(
        "--leave-out-same-id",
        action="store_true",
        help="never find the document that has the query's own id (BEIR does so; it matters in ArguAna and Quora)",
    )
    parser.add_argument("--query-block", type=int, default=512, metavar="N", help="queries at a time (512)")
    parser.add_argument("--document-block", type=int, default=16_384, metavar="N", help="documents at a time (16384)")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Searches and writes the run file's name to standard output."""
    check_device(args.device)
    refuse_existing(args.output)
    for name in ("top_k", "query_block", "document_block"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1 and is {getattr(args, name)}")
    if args.tag.split() != [args.tag]:
        raise ValueError(f"--tag {args.tag!r} is a column of the run file and must be one word")
    queries, documents = open_embeddings(args.queries), open_embeddings(args.documents)
    check_comparable(queries, documents)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    _write_run(args, queries, documents)
    logger.info("searched %s documents for %s queries", f"{len(documents.rows):,}", f"{len(queries.rows):,}")
    sys.stdout.write(f"{args.output}\n")


def _write_run(args: argparse.Namespace, queries: Embeddings, documents: Embeddings) -> None:
    device = torch.device(args.device)
    depth = args.top_k + bool(args.leave_out_same_id)
    with atomic_file(args.output) as stream, tqdm(total=len(queries.rows), unit=" queries") as progress:
        for first in range(0, len(queries.rows), args.query_block):
            block = np.array(queries.rows[first : first + args.query_block])
            scores, found = search(
                torch.from_numpy(block).to(device), blocks_of(documents.rows, args.document_block), depth
            )
            for place, (values, rows) in enumerate(zip(scores.tolist(), found.tolist()), first):
                query = queries.identifiers[place]
                pairs = [(documents.identifiers[row], value) for row, value in zip(rows, values)]
                if args.leave_out_same_id:
                    pairs = [pair for pair in pairs if pair[0] != query]
                names, numbers = zip(*pairs[: args.top_k]) if pairs else ((), ())
                write_results(stream, query, names, numbers, args.tag)
            progress.update(len(block))
