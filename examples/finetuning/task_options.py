#!/usr/bin/env python3
"""Write the options of fairseq-train that a task's folder and a checkpoint decide, one word a line; for finetune.sh."""

import argparse
import math
import sys
from pathlib import Path

from fairseq.data import Dictionary, data_utils

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.sweep.encoder import read_encoder, schedule
from fairseq_maelm.sweep.training import words_of


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


def schedule_options(task: Path, epochs: int, batch_size: int, warm_up: float) -> list[str]:
    """Return the options for the length of training."""
    examples = len(data_utils.load_indexed_dataset(str(task / "input0" / "train"), None))
    return words_of(schedule(epochs, math.ceil(examples / batch_size), warm_up))


def main() -> None:
    """Read the command line and write the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path, help="folder of prepare_sentences.py")
    parser.add_argument("checkpoint", type=Path, help="of pretraining")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--warm-up-proportion", type=float, required=True)
    args = parser.parse_args()
    if not (args.task / "input0" / "train.idx").exists():
        raise SystemExit(f"there is no {args.task / 'input0' / 'train.idx'}: make the folder with prepare_sentences.py")
    words = [
        *encoder_options(args.checkpoint),
        *label_options(args.task),
        *schedule_options(args.task, args.epochs, args.batch_size, args.warm_up_proportion),
    ]
    sys.stdout.write("".join(f"{word}\n" for word in words))


if __name__ == "__main__":
    main()
