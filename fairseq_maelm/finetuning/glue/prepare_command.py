"""The sub-command ``maelm prepare glue``."""

import argparse
import logging
import sys
from pathlib import Path

from fairseq_maelm.files import CorpusError
from fairseq_maelm.finetuning.glue.prepare import GlueSettings, check_vocabulary, prepare_task
from fairseq_maelm.finetuning.glue_layout import TASKS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm prepare glue``."""
    parser.description = (
        "Checks GLUE's files and encodes them into folders for the task maelm_sentences, one for each of GLUE's. "
        "Tasks that are already there, made from the same files, are kept."
    )
    parser.add_argument("glue", type=Path, metavar="GLUE", help="folder that holds CoLA, SST-2, MRPC, ... as unpacked")
    parser.add_argument("--data", required=True, type=Path, help="folder of `maelm prepare corpus`, for the vocabulary")
    parser.add_argument("--output", required=True, type=Path, metavar="TASKS", help="the folder for all tasks")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, metavar="TASK", help=f"of {', '.join(TASKS)} (those that GLUE holds)"
    )
    parser.add_argument(
        "--max-positions", type=int, default=512, metavar="N", help="of the encoder; longer examples are cut (512)"
    )
    parser.add_argument(
        "--train-file",
        nargs="+",
        default=[],
        metavar="TASK=FILE",
        help="a training file of your own in the official one's columns, with any number of rows",
    )
    parser.add_argument(
        "--accept-counts", action="store_true", help="take files with other numbers of rows than the official ones"
    )


def run(args: argparse.Namespace) -> None:
    """Prepares the tasks and writes their folders to standard output."""
    settings = GlueSettings(
        glue=args.glue,
        data=args.data,
        output=args.output,
        max_positions=args.max_positions,
        train_files=dict(_train_file(text) for text in args.train_file),
        accept_counts=args.accept_counts,
    )
    check_vocabulary(args.data)
    tasks = args.tasks or [task for task in TASKS if (args.glue / task).is_dir()]
    if not tasks:
        raise FileNotFoundError(f"{args.glue} holds no folder named {', '.join(TASKS)}")
    missing = [task for task in TASKS if task not in tasks]
    if missing and not args.tasks:
        logger.warning("%s has no %s", args.glue, ", ".join(missing))
    for task in tasks:
        manifest = prepare_task(task, settings)
        for split, facts in manifest["splits"].items():
            logger.info(
                "%s %s: %s examples, %s truncated", task, split, f"{facts['examples']:,}", f"{facts['truncated']:,}"
            )
        sys.stdout.write(f"{settings.output / task}\n")


def _train_file(text: str) -> tuple[str, Path]:
    task, separator, path = text.partition("=")
    if not separator or not path:
        raise CorpusError(f"--train-file takes TASK=FILE, such as QNLI=train.tsv, and not {text!r}")
    return task, Path(path)
