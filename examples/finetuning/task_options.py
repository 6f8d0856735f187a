#!/usr/bin/env python3
"""Write the options of fairseq-train that a task's folder and a checkpoint decide, one word a line; for finetune.sh."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from fairseq.data import Dictionary, data_utils

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.finetuning.encoder import read_encoder, schedule
from fairseq_maelm.train_command import words_of


def encoder_options(checkpoint: Path) -> list[str]:
    """Return the options that build the checkpoint's encoder."""
    try:
        return words_of(read_encoder(checkpoint).options)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(str(error)) from error


def label_options(task: Path) -> list[str]:
    """Return the options for the task's labels: classes if there is a dictionary of them, otherwise one number."""
    dictionary = task / "label" / "dict.txt"
    if not dictionary.exists():
        return ["--num-classes", "1", "--regression-target", "--best-checkpoint-metric", "loss"]
    labels = Dictionary.load(str(dictionary))
    # fairseq-preprocess fills a dictionary up with made-up words.
    classes = sum(not label.startswith("madeupword") for label in labels.symbols[labels.nspecial :])
    metric = ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]
    return ["--num-classes", str(classes), *metric]


def schedule_options(examples: int, args: argparse.Namespace) -> list[str]:
    """Return the options for the length of training on so many examples, and for its warm-up."""
    return words_of(schedule(args.epochs, math.ceil(examples / args.batch_size), args.warm_up_proportion))


def make_parser(description: Optional[str], maker: str) -> argparse.ArgumentParser:
    """Return the command line that all scripts of options have; ``maker`` is what writes the task's folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("task", type=Path, help=f"folder of {maker}")
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--warm-up-proportion", type=float, required=True)
    return parser


def write(words: Sequence[str]) -> None:
    """Write the options where the shell reads them."""
    sys.stdout.write("".join(f"{word}\n" for word in words))


def main() -> None:
    """Read the command line and write the options."""
    args = make_parser(__doc__, "prepare_sentences.py").parse_args()
    if not (args.task / "input0" / "train.idx").exists():
        raise SystemExit(f"there is no {args.task / 'input0' / 'train.idx'}: make the folder with prepare_sentences.py")
    examples = len(data_utils.load_indexed_dataset(str(args.task / "input0" / "train"), None))
    write([*encoder_options(args.checkpoint), *label_options(args.task), *schedule_options(examples, args)])


if __name__ == "__main__":
    main()
