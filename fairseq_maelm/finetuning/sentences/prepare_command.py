"""The sub-command ``maelm prepare sentences``."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.sentences.prepare import SentenceSettings, prepare_sentences
from fairseq_maelm.finetuning.sentences.table import Columns

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare sentences``."""
    parser.description = (
        "Turns tables of texts and labels into a folder to fine-tune on: .tsv, .csv or .jsonl, compressed with gzip or "
        "not. Without --text and --label a table has no names of columns: 'text, label' or 'text, text, label'."
    )
    parser.add_argument("--train", type=Path, required=True, metavar="TABLE", help="to learn from")
    parser.add_argument("--valid", type=Path, metavar="TABLE", help="to choose a checkpoint by (a part of --train)")
    parser.add_argument("--test", type=Path, metavar="TABLE", help="for the end; may lack labels (none)")
    parser.add_argument(
        "--vocabulary",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="of `maelm prepare corpus`, or of the checkpoint",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="TASK", help="the new folder")
    add_column_arguments(parser)
    parser.add_argument("--regression", action="store_true", help="labels are numbers")
    parser.add_argument(
        "--valid-fraction", type=float, default=0.1, metavar="X",
        help="of the training examples, held out where there is no --valid; of each label alike (0.1)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of that draw (1)")


def add_column_arguments(parser: Any) -> None:
    """Declare where texts and labels stand in a table."""
    group = parser.add_argument_group("columns", "names, which the first line then holds, or places from 0 on")
    group.add_argument("--text", metavar="C", help="of the text")
    group.add_argument("--text-pair", metavar="C", help="of the second text of pairs")
    group.add_argument("--label", metavar="C", help="of the label")


def columns_of(args: argparse.Namespace) -> Columns:
    """The columns that the arguments say."""
    return Columns(args.text, args.text_pair, args.label)


def run(args: argparse.Namespace) -> None:
    """Prepares the task and writes its folder to standard output.

    Raises:
        CorpusError: a table is not as it must be.
        OSError: a file is missing.
    """
    tables = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    manifest = prepare_sentences(
        SentenceSettings(
            tables=tables,
            vocabulary=args.vocabulary,
            output=args.output,
            columns=columns_of(args),
            regression=args.regression,
            valid_fraction=args.valid_fraction,
            seed=args.seed,
        )
    )
    for split, facts in manifest["splits"].items():
        logger.info("%s: %s examples", split, f"{facts['examples']:,}")
    sys.stdout.write(f"{args.output}\n")
