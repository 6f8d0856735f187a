"""The sub-command ``maelm report``."""

import argparse
import logging
import sys
from pathlib import Path

from fairseq_maelm.sweep.report import write_report

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm report``."""
    parser.description = (
        "Writes the table of a sweep, finished or still running: best setting of each task and model, median over "
        "seeds, the paper's scores beside it; all runs in runs.csv; the spread in spread.png and .svg."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --output of maelm sweep")
    parser.add_argument("--paper", nargs="+", metavar="GROUP", help="of the recipes' published rows (all)")
    parser.add_argument("--no-figure", action="store_true", help="do not draw the spread")


def run(args: argparse.Namespace) -> None:
    """Writes the report into the folder and its table to standard output.

    Raises:
        FileNotFoundError: there is no sweep.
        ValueError: no recipe has such a group of published rows.
    """
    sys.stdout.write(write_report(args.folder, not args.no_figure, args.paper))
    logger.info("%s, with runs.csv beside it", args.folder / "report.md")
