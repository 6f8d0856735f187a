"""The command ``maelm report``."""

import argparse
import logging
import sys

from fairseq_maelm.options import existing_path

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm report``."""
    parser.description = (
        "Writes the table of a finished or running sweep: the best setting of each task and model, medians over seeds, "
        "differences of models, the paper's scores. Writes all runs to runs.csv."
    )
    parser.add_argument("sweep", type=existing_path, metavar="SWEEP", help="folder written by `maelm sweep`")
    parser.add_argument(
        "--paper", nargs="+", metavar="GROUP", help="groups of published scores to show, such as base (default: all)"
    )


def run(args: argparse.Namespace) -> None:
    """Save the report in the sweep's folder, and print its table."""
    from fairseq_maelm.sweep.report import write_report  # takes a second

    sys.stdout.write(write_report(args.sweep, args.paper))
    logger.info("wrote %s, and runs.csv into the same folder", args.sweep / "report.md")
