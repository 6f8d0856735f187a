"""The sub-command ``maelm predict-glue``."""

import argparse
import json
import logging
import sys
from pathlib import Path

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.glue.predict import (
    HEAD,
    dev_metrics,
    load_model,
    prediction_file,
    submission_text,
)
from fairseq_maelm.finetuning.glue.prepared import TaskFolder
from fairseq_maelm.finetuning.sentence_scores import score_split

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm predict-glue``."""
    parser.description = (
        "Writes predictions of a fine-tuned checkpoint in GLUE's submission format, and the metrics of dev sets, in "
        "percent, to standard output as one line of JSON for each."
    )
    parser.add_argument("task", type=Path, metavar="TASK", help="folder of one task that `maelm prepare glue` wrote")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="fine-tuned on that task")
    parser.add_argument("--output", required=True, type=Path, help="folder for the files, shared by all tasks")
    parser.add_argument(
        "--splits", nargs="+", metavar="SPLIT", help="of the folder: valid, valid1, test, test1 (all that it has)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="examples at a time (32)")
    add_device_argument(parser)
    parser.add_argument("--head", default=HEAD, metavar="NAME", help=f"the classification head ({HEAD})")


def run(args: argparse.Namespace) -> None:
    """Predicts the splits one after the other; nothing that exists is overwritten."""
    check_device(args.device)
    folder = TaskFolder.read(args.task)
    splits = args.splits or [split for split in folder.splits if split != "train"]
    unknown = [split for split in splits if split not in folder.splits]
    if unknown:
        raise ValueError(f"{args.task} has no split {', '.join(unknown)}; it has {', '.join(folder.splits)}")
    if "train" in splits:
        raise ValueError("predictions of the training set are no part of GLUE: name dev and test splits")
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, not {args.batch_size}")
    files = {split: args.output / prediction_file(folder, split) for split in splits}
    refuse_existing(*files.values())
    interface = load_model(args.checkpoint, folder, args.head).to(args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    for split, path in files.items():
        scores = score_split(interface, split, args.batch_size, args.head)
        write_bytes(path, submission_text(scores, folder, split).encode("ascii"))
        logger.info("%s: %s predictions in %s", split, f"{len(scores.outputs):,}", path)
        if scores.targets is not None:
            result = {"task": folder.splits[split]["name"], "split": split, **dev_metrics(scores, folder)}
            sys.stdout.write(json.dumps(result) + "\n")
