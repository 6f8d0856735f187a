"""The command ``maelm prepare squad``."""

import argparse
import sys

from fairseq_maelm.checkpoints.locate import add_vocabulary
from fairseq_maelm.finetuning.squad.prepare import PROBLEMS, prepare_squad
from fairseq_maelm.options import UsageError, add_allow_unknown, add_output, existing_path

AFTER_INTERRUPT = "nothing was written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare squad``."""
    parser.description = (
        "Reads SQuAD 1.1 or 2.0 (the official JSON, or your own questions in its layout or in rows, as datasets "
        "writes them), checks the offset of every answer, and writes a task folder for fine-tuning. Problems of single "
        f"questions are counted in the log and listed in {PROBLEMS}; no question is dropped."
    )
    for split, use in (
        ("train", "questions to train on"),
        ("valid", "questions to validate on: SQuAD's dev file"),
        ("test", "questions to predict, with or without answers"),
    ):
        parser.add_argument(f"--{split}", type=existing_path, metavar="JSON", help=use)
    add_vocabulary(parser, required=True)
    add_allow_unknown(parser)
    add_output(parser, "new folder of the task")


def run(args: argparse.Namespace) -> None:
    """Prepare the task and print the path of the task folder."""
    files = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    if not files:
        raise UsageError("give --train, --valid or --test")
    prepare_squad(files, args.vocabulary, args.output, args.allow_unknown)
    sys.stdout.write(f"{args.output}\n")
