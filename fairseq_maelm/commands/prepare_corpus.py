"""The command ``maelm prepare corpus``."""

import argparse
import logging
import sys

from fairseq_maelm.corpus.prepare import prepare
from fairseq_maelm.corpus.settings import PrepareSettings
from fairseq_maelm.options import add_allow_unknown, add_settings, settings_of

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command resumes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare corpus``."""
    parser.description = (
        "Cleans text, trains a sentencepiece vocabulary (or takes yours), encodes in parallel and writes fairseq's "
        "memory-mapped format. After an interruption, the same command resumes."
    )
    add_settings(parser, PrepareSettings)
    add_allow_unknown(parser)


def run(args: argparse.Namespace) -> None:
    """Prepare the corpus and print the data argument for fairseq-train."""
    prepared = prepare(settings_of(PrepareSettings, args), args.allow_unknown)
    for name, counts in prepared.manifest["counts"].items():
        logger.info(
            "%s: %s documents, %s paragraphs, %s tokens, %.4f %% unknown",
            name,
            *(f"{counts[unit]:,}" for unit in ("documents", "paragraphs", "tokens")),
            100 * counts["unknown_tokens"] / counts["tokens"],
        )
        if counts["paragraphs_without_tokens"]:
            logger.warning(
                "%s: the vocabulary's normalization leaves %s paragraphs empty; each of them will be read as the end "
                "of a document",
                name,
                f"{counts['paragraphs_without_tokens']:,}",
            )
    sys.stdout.write(prepared.data_argument + "\n")
