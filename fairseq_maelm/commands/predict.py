"""The command ``maelm predict``, for all kinds of fine-tuning."""

import argparse
import contextlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint, vocabulary_folder
from fairseq_maelm.files.atomic import refuse_existing, write_bytes, write_json
from fairseq_maelm.finetuning.doubtful_results import doubt_about, report_on_classes
from fairseq_maelm.finetuning.kinds import kinds, predict_input
from fairseq_maelm.options import UsageError, add_allow_unknown, add_device, add_output, existing_path, number

logger = logging.getLogger(__name__)

STANDARD_INPUT = Path("-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm predict``."""
    parser.description = (
        "Writes the predictions of a fine-tuned checkpoint, or with --prompt of a pretrained one. The output has, for "
        "tables (.tsv, .csv, .jsonl, .json, FASTA), each row's text with the most likely label and the probabilities "
        "of all labels, or with the predicted number; for CoNLL files, the file with new labels; for plain text, "
        "word/LABEL; for questions in SQuAD's format, an answer for each id. If the input has labels, the metrics "
        "are logged."
    )
    parser.add_argument(
        "input", type=_input_path, metavar="INPUT",
        help="file, '-' for standard input, or a prepared folder (see --split)",
    )  # fmt: skip
    add_checkpoint(parser, "fine-tuned checkpoint, or with --prompt a pretrained one")
    add_output(parser, "new file for the predictions", metavar="FILE", required=False)
    parser.add_argument(
        "--vocabulary", type=vocabulary_folder, metavar="FOLDER",
        help="folder with vocabulary and labels (default: INPUT if that is a folder, or else the checkpoint's folder)",
    )  # fmt: skip
    parser.add_argument("--split", help="split of a prepared folder (default: valid)")
    parser.add_argument(
        "--report",
        action="store_true",
        help="also log precision, recall and F1 of each label and, for few labels, the confusion matrix",
    )
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="new JSON file for the metrics")
    parser.add_argument(
        "--batch-size", type=number(int, 1), default=32, metavar="N", help="number of examples in a batch"
    )
    add_allow_unknown(parser)
    add_device(parser)
    options = {}
    for name, kind in kinds().items():
        declared = len(parser._actions)
        kind.add_options(parser)
        options[name] = parser._actions[declared:]
    parser.set_defaults(options_of_kinds=options)


def run(args: argparse.Namespace) -> None:
    """Print the predictions or save them to ``--output``, and log the metrics, which are no part of the output."""
    from fairseq_maelm.checkpoints.reader import read_checkpoint  # imports torch

    if args.split is not None and not args.input.is_dir():
        raise UsageError(f"--split chooses a part of a prepared folder, but {args.input} is not a folder: omit it")
    args.split = args.split or "valid"
    refuse_existing(*(path for path in (args.output, args.metrics, args.null_odds) if path is not None))
    checkpoint = read_checkpoint(args.checkpoint)
    task = checkpoint.task_name
    name = next((name for name, kind in kinds().items() if task in kind.tasks), None)
    if name is None:
        known = ", ".join(task for kind in kinds().values() for task in kind.tasks)
        raise ValueError(
            f"{args.checkpoint} is a checkpoint of the task {task}, which maelm predict does not know: give a "
            f"checkpoint of one of the tasks {known}"
        )
    if args.prompt is None and task == "maelm":
        kind = "the import of a fine-tuned" if checkpoint.heads else "a pretrained"
        own = ", or score texts by its head in Python: hub.predict(HEAD, hub.encode(TEXT))" if checkpoint.heads else ""
        raise UsageError(f"{args.checkpoint} is {kind} checkpoint: give --prompt, or fine-tune it first{own}")
    _refuse_options_of_other_kinds(args, name, task)
    args.checkpoint = args.checkpoint.absolute()
    own = args.input if args.input.is_dir() else args.checkpoint.parent
    args.vocabulary = (args.vocabulary or own).absolute()
    with contextlib.ExitStack() as stack:
        if args.input == STANDARD_INPUT:
            # A file can be read repeatedly, and its content tells its kind.
            args.input = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stdin.txt"
            args.input.write_bytes(sys.stdin.buffer.read())
        predicted = predict_input(name, args)
    for path, content in predicted.files.items():
        write_json(path, content)
    if args.output is None:
        sys.stdout.write(predicted.text)
    else:
        write_bytes(args.output, predicted.text.encode("utf-8"))
    _report(predicted, args)


def _report(predicted: Any, args: argparse.Namespace) -> None:
    """Log the metrics, with ``--report`` those of each label, and write the file ``--metrics``."""
    why = "the input has no labels" if predicted.metrics is None else "the model predicts no labels"
    if args.report and any((*predicted.right, *predicted.labels)):
        logger.info("report:\n%s", report_on_classes(predicted.right, predicted.labels))
    elif args.report:
        logger.warning("there is no report: %s", why)
    if predicted.metrics is None:
        if args.metrics is not None:
            logger.warning("%s is not written: %s", args.metrics, why)
        return
    if doubt := doubt_about(predicted.metrics, predicted.right):
        logger.warning("%s", doubt)
    logger.info("metrics: %s", json.dumps(predicted.metrics))
    if args.metrics is not None:
        write_json(args.metrics, predicted.metrics)


def _input_path(text: str) -> Path:
    return STANDARD_INPUT if text == str(STANDARD_INPUT) else existing_path(text)


def _refuse_options_of_other_kinds(args: argparse.Namespace, name: str, task: str) -> None:
    for other, actions in args.options_of_kinds.items():
        for action in actions if other not in (name, *kinds()[name].accepts) else ():
            if getattr(args, action.dest) != action.default:
                tasks = ", ".join(
                    each for own, kind in kinds().items() if other in (own, *kind.accepts) for each in kind.tasks
                )
                raise UsageError(
                    f"{action.option_strings[0]} is for checkpoints of the tasks {tasks}, but {args.checkpoint} is a "
                    f"checkpoint of the task {task}: omit this option"
                )
