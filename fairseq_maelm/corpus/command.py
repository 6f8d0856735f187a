"""The sub-command ``maelm prepare corpus``."""

import argparse
import logging
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_maelm.corpus.prepare import prepare
from fairseq_maelm.corpus.settings import DEFAULT_PRESET, DEFAULT_VALID_FRACTION, PrepareSettings
from fairseq_maelm.corpus.workers import available_cores
from fairseq_maelm.text.vocabulary import PRESETS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare corpus``."""
    parser.description = (
        "Cleans text, trains a sentencepiece vocabulary (or takes yours), encodes in parallel and writes fairseq's "
        "memory-mapped format. A run that was interrupted resumes when the same command is given again."
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help="text files or folders: plain text (a paragraph a line, a blank line between documents) or .jsonl "
        "(a record a document), each also as .gz or .xz",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DATA", help="the new data folder")
    parser.add_argument("--json-field", default="text", metavar="NAME", help="field with the text in .jsonl (text)")
    parser.add_argument(
        "--deduplicate",
        action="store_true",
        help="drop paragraphs whose exact text came before; takes about 100 bytes of memory a distinct paragraph",
    )
    parser.add_argument("--seed", type=int, default=1, help="decides the split, the shards and the sample (1)")
    parser.add_argument("--workers", type=int, default=available_cores(), metavar="N", help="processes (all cores)")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="parts of the training split (1)")
    _add_valid_arguments(parser)
    _add_vocabulary_arguments(parser)


def _add_valid_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("validation split (one of)")
    group.add_argument(
        "--valid-fraction",
        type=float,
        metavar="F",
        help=f"share of the documents held out ({DEFAULT_VALID_FRACTION})",
    )
    group.add_argument("--valid-documents", type=int, metavar="N", help="number of the documents held out")
    group.add_argument(
        "--valid", nargs="+", type=Path, default=[], metavar="INPUT", help="own files or folders, taken whole"
    )


def _add_vocabulary_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vocabulary")
    sizes = ", ".join(f"{name} {preset.size:,}" for name, preset in PRESETS.items())
    group.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        help=f"normalization and pieces: {sizes}; fairseq's total with <mask> is 2 more ({DEFAULT_PRESET})",
    )
    group.add_argument("--vocabulary-size", type=int, metavar="N", help="pieces, instead of the preset's")
    group.add_argument(
        "--character-coverage", type=float, metavar="F", help="share of characters the pieces must spell (0.9995)"
    )
    group.add_argument(
        "--sample-megabytes", type=float, metavar="MB", help="text that the vocabulary is trained on (100)"
    )
    group.add_argument("--sentencepiece-model", type=Path, metavar="FILE", help="use this model and train none")
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="use dictionary and tokenizer of this folder, of `maelm import` for example, and train none",
    )


def run(args: argparse.Namespace) -> None:
    """Prepares the corpus and writes to standard output what to give to fairseq-train as its data."""
    given = {field.name: getattr(args, field.name) for field in fields(PrepareSettings)}
    settings = PrepareSettings(**{**given, "inputs": tuple(args.inputs), "valid": tuple(args.valid)})
    prepared = prepare(settings)
    for name, counts in prepared.manifest["counts"].items():
        logger.info(
            "%s: %s documents, %s paragraphs, %s tokens, %.4f %% unknown",
            name,
            f"{counts['documents']:,}",
            f"{counts['paragraphs']:,}",
            f"{counts['tokens']:,}",
            100 * counts["unknown_tokens"] / counts["tokens"],
        )
        if counts["paragraphs_without_tokens"]:
            logger.warning(
                "%s: the model leaves nothing of %s paragraphs, which will read as ends of documents",
                name,
                f"{counts['paragraphs_without_tokens']:,}",
            )
    sys.stdout.write(prepared.data_argument + "\n")
