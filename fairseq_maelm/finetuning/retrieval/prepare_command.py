"""The sub-command ``maelm prepare retrieval``."""

import argparse
import logging
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_maelm.finetuning.retrieval.prepare import RetrievalSettings, prepare_retrieval

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare retrieval``."""
    parser.description = (
        "Checks a retrieval task in BEIR layout (corpus.jsonl, queries.jsonl, qrels/train.tsv, dev.tsv, test.tsv) and "
        "binarizes it with an encoder's vocabulary, for fairseq-train --task maelm_retrieval."
    )
    parser.add_argument("beir", type=Path, metavar="BEIR", help="the folder with corpus.jsonl, queries.jsonl, qrels/")
    parser.add_argument(
        "--data", required=True, type=Path, help="folder of `maelm prepare corpus` that the encoder was pretrained on"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="RETRIEVAL", help="the new folder")
    parser.add_argument(
        "--valid-fraction",
        type=float,
        metavar="F",
        help="hold out this share of the training queries for validation, where there is no qrels/dev.tsv",
    )
    parser.add_argument("--seed", type=int, default=1, help="decides which queries are held out (1)")
    parser.add_argument(
        "--hard-negatives",
        type=Path,
        metavar="FILE",
        help="'query-id TAB corpus-id' a line, or a run file of `maelm search` (mined negatives, the best first)",
    )
    parser.add_argument(
        "--negatives-per-query", type=int, default=50, metavar="N", help="keep the first N of each query (50)"
    )
    parser.add_argument("--allow-empty", action="store_true", help="keep empty texts instead of stopping at them")


def run(args: argparse.Namespace) -> None:
    """Prepares the task and writes to standard output what to give to fairseq-train as its data."""
    given = {field.name: getattr(args, field.name) for field in fields(RetrievalSettings)}
    facts = prepare_retrieval(RetrievalSettings(**given))
    for texts in ("documents", "queries"):
        counts = facts[texts]
        share = 100 * counts["unknown_tokens"] / counts["tokens"]
        logger.info(
            "%s: %s texts of %.1f tokens, %.4f %% unknown",
            texts,
            f"{counts['texts']:,}",
            counts["tokens"] / counts["texts"],
            share,
        )
    for split, counts in facts["splits"].items():
        logger.info("%s: %d queries, %d relevant pairs", split, counts["queries"], counts["relevant_pairs"])
    if "negatives" in facts:
        counts = facts["negatives"]
        logger.info(
            "hard negatives: %d of %d training queries; left out: %d known to be relevant, %d of other queries",
            counts["taken"],
            counts["queries"],
            counts["relevant"],
            counts["of_other_queries"],
        )
    sys.stdout.write(f"{args.output}\n")
