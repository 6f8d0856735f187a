"""The sub-command ``maelm prepare squad``."""

import argparse
import sys
from pathlib import Path

from fairseq_maelm.finetuning.squad.prepare import PROBLEMS, prepare_squad


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare squad``."""
    parser.description = (
        "Reads SQuAD 1.1 or 2.0 (the official JSON, or own questions in its layout), checks that every answer stands "
        "where the file says, and writes the folder that the task maelm_squad trains on, with the vocabulary of a "
        f"pretraining corpus. What is wrong with single questions is counted in the log and listed in {PROBLEMS}; "
        "nothing is dropped."
    )
    parser.add_argument(
        "--data", required=True, type=Path, metavar="DATA", help="folder of `maelm prepare corpus` or `maelm import`"
    )
    parser.add_argument("--train", type=Path, metavar="JSON", help="questions to train on")
    parser.add_argument("--valid", type=Path, metavar="JSON", help="questions to validate on: SQuAD's dev file")
    parser.add_argument("--test", type=Path, metavar="JSON", help="questions to predict; they need no answers")
    parser.add_argument("--output", required=True, type=Path, metavar="TASK", help="the new folder")


def run(args: argparse.Namespace) -> None:
    """Prepares the folder and writes its name to standard output."""
    files = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    if not files:
        raise ValueError("give --train, --valid or --test")
    prepare_squad(files, args.data, args.output)
    sys.stdout.write(f"{args.output}\n")
