"""The command ``maelm export``."""

import argparse
import sys

from fairseq_maelm.checkpoints.locate import add_checkpoint, add_vocabulary
from fairseq_maelm.interop.export.formats import ExportSettings
from fairseq_maelm.options import add_output, add_replace, add_settings, settings_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm export``."""
    parser.description = (
        "Converts a checkpoint to a folder for Hugging Face transformers (configuration, weights, tokenizer, model "
        "card), or to a smaller fairseq checkpoint. The folder appears only after its model was compared with "
        "the checkpoint; a model that the format cannot represent exactly is refused."
    )
    add_checkpoint(parser)
    add_vocabulary(parser)
    add_output(parser, "new folder")
    add_settings(parser, ExportSettings)
    add_replace(parser)


def run(args: argparse.Namespace) -> None:
    """Export the checkpoint, and print the comparison and the path of the result."""
    from fairseq_maelm.interop.export.exporter import export  # imports torch and fairseq

    settings = settings_of(ExportSettings, args)
    done = export(args.checkpoint, args.vocabulary, args.output, settings, args.replace)
    for line in [*(each.describe() for each in done.agreements), *done.remarks]:
        sys.stdout.write(f"{line}\n")
