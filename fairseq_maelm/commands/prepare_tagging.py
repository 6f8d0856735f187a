"""The command ``maelm prepare tagging``."""

import argparse
import sys

from fairseq_maelm.checkpoints.locate import add_vocabulary
from fairseq_maelm.files.conll import add_layout_arguments, layout_of
from fairseq_maelm.finetuning.tagging.prepare import prepare_tagging
from fairseq_maelm.finetuning.tagging.schemes import PLAIN, PREFIXES
from fairseq_maelm.options import UsageError, add_allow_unknown, add_output, existing_path

AFTER_INTERRUPT = "nothing was written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare tagging``."""
    parser.description = (
        "Turns files of labeled words (CoNLL-U, or CoNLL columns) into a task folder for fine-tuning. It splits words "
        "into pieces of the vocabulary, checks the labels of entities, and converts them to the model's scheme."
    )
    parser.add_argument("--train", type=existing_path, required=True, metavar="FILE", help="file to train on")
    parser.add_argument("--valid", type=existing_path, required=True, metavar="FILE", help="file to validate on")
    parser.add_argument("--test", type=existing_path, metavar="FILE", help="file to test on")
    add_vocabulary(parser, required=True)
    add_allow_unknown(parser)
    add_output(parser, "new folder of the task")
    add_layout_arguments(parser)
    parser.add_argument(
        "--file-scheme", choices=("auto", *PREFIXES, PLAIN), default="auto",
        help="scheme of the labels in the files; plain is for labels that do not mark entities",
    )  # fmt: skip
    parser.add_argument("--scheme", choices=tuple(PREFIXES), default="iob2", help="scheme of the model's labels")


def run(args: argparse.Namespace) -> None:
    """Prepare the task and print the path of the task folder."""
    files = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    layout = layout_of(args, args.train)
    for split, path in files.items():
        if (own := layout_of(args, path)) != layout:
            raise UsageError(f"--{split} is {own.form}, but --train is {layout.form}: give files of one --format")
    schemes = args.file_scheme, args.scheme
    prepare_tagging(args.vocabulary, files, args.output, layout, *schemes, args.allow_unknown)
    sys.stdout.write(f"{args.output}\n")
