"""The sub-command ``maelm extend-vocabulary``."""

import argparse
import sys
from pathlib import Path

from fairseq_maelm.adaptation.extend import extend_vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm extend-vocabulary``."""
    parser.description = (
        "Adds pieces for the frequent words of a domain to a vocabulary, and rows for them to a checkpoint: each the "
        "mean of the rows of the pieces that it replaces. Text without such words is encoded as before."
    )
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help="the domain's text, as for `maelm prepare`")
    parser.add_argument("--data", type=Path, required=True, help="folder of the checkpoint's vocabulary")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of pretraining")
    parser.add_argument("--pieces", type=int, default=1000, metavar="N", help="the most pieces to add (1000)")
    parser.add_argument(
        "--least-count", type=int, default=20, metavar="N", help="how often two pieces must stand side by side (20)"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="the new folder")


def run(args: argparse.Namespace) -> None:
    """Extends the vocabulary and writes the new folder to standard output.

    Raises:
        OSError: a file is missing, or the output is there already.
        ValueError: something does not belong together, or there is nothing to add.
    """
    extend_vocabulary(args.data, args.checkpoint, args.texts, args.pieces, args.least_count, args.output)
    sys.stdout.write(f"{args.output}\n")
