"""The sub-command ``maelm prepare tagging``."""

import argparse
import sys
from pathlib import Path

from fairseq_maelm.finetuning.tagging.files import Layout
from fairseq_maelm.finetuning.tagging.prepare import prepare_tagging
from fairseq_maelm.finetuning.tagging.schemes import PLAIN, PREFIXES


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares where words and labels stand in a file."""
    parser.add_argument("--format", choices=("conllu", "conll"), help="CoNLL-U, or columns by tabs or spaces; by name")
    parser.add_argument(
        "--column", metavar="C", help="of the labels: UPOS, XPOS, ... (UPOS); or a number (-1, the last)"
    )
    parser.add_argument(
        "--word-column", type=int, default=0, metavar="N", help="of the words, for conll (0, the first)"
    )
    parser.add_argument("--comment-prefix", default="", metavar="TEXT", help="of comment lines, for conll (none)")


def layout_of(args: argparse.Namespace, first: Path) -> Layout:
    """The layout that the arguments describe; a file that ends in .conllu is CoNLL-U if nothing else is said."""
    form = args.format or ("conllu" if first.suffix == ".conllu" else "conll")
    column = args.column or ("UPOS" if form == "conllu" else "-1")
    return Layout(form, column, args.word_column, args.comment_prefix)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare tagging``."""
    parser.description = (
        "Turns files of labeled words into the folder that the task maelm_tagging reads: words become pieces of the "
        "encoder's vocabulary, entities are checked and written in the scheme that the model is to learn."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of `maelm prepare corpus` or `maelm import`")
    parser.add_argument("--train", type=Path, required=True, metavar="FILE", help="to learn from")
    parser.add_argument("--valid", type=Path, required=True, metavar="FILE", help="to choose a checkpoint by")
    parser.add_argument("--test", type=Path, metavar="FILE", help="for metrics at the end (none)")
    parser.add_argument("--output", type=Path, required=True, metavar="TASK", help="the new folder")
    add_layout_arguments(parser)
    parser.add_argument(
        "--file-scheme", choices=("auto", *PREFIXES, PLAIN), default="auto", help="how the files write entities (auto)"
    )
    parser.add_argument("--scheme", choices=tuple(PREFIXES), default="iob2", help="what the model learns (iob2)")


def run(args: argparse.Namespace) -> None:
    """Prepares the task and writes its folder to standard output."""
    files = {split: getattr(args, split) for split in ("train", "valid", "test") if getattr(args, split)}
    layout = layout_of(args, args.train)
    prepare_tagging(args.data, files, args.output, layout, args.file_scheme, args.scheme)
    sys.stdout.write(f"{args.output}\n")
