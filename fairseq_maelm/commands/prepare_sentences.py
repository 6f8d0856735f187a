"""The command ``maelm prepare sentences``."""

import argparse
import logging
import sys

from fairseq_maelm.checkpoints.locate import add_vocabulary
from fairseq_maelm.finetuning.sentences.kind import SentenceSettings
from fairseq_maelm.options import add_allow_unknown, add_output, add_settings, settings_of

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare sentences``."""
    parser.description = (
        "Turns tables of texts and labels (.tsv, .csv or .jsonl, plain or compressed) into a task folder for "
        "fine-tuning. Without --text and --label, a table must have no header, and the columns 'text, label' or "
        "'text, text, label'."
    )
    add_vocabulary(parser, required=True)
    add_allow_unknown(parser)
    add_output(parser, "new folder of the task")
    add_settings(parser, SentenceSettings)


def run(args: argparse.Namespace) -> None:
    """Prepare the task and print the path of the task folder."""
    from fairseq_maelm.finetuning.sentences.prepare import prepare_sentences  # takes seconds

    manifest = prepare_sentences(settings_of(SentenceSettings, args), args.vocabulary, args.output, args.allow_unknown)
    for split, facts in manifest["splits"].items():
        logger.info("%s: %s examples", split, f"{facts['examples']:,}")
    sys.stdout.write(f"{args.output}\n")
