#!/usr/bin/env python3
"""Write the options of fairseq-train that a SQuAD folder and a checkpoint decide, one word a line; for finetune.sh."""

import sys
from pathlib import Path

import numpy as np

# The package is found beside the examples when it is not installed, and so is the script of the other recipe.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "finetuning"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from task_options import encoder_options, make_parser, schedule_options, write

from fairseq_maelm.finetuning.squad.prepared import NOT_LOCATED, load_split
from fairseq_maelm.finetuning.squad.windows import cut_windows


def training_windows(task: Path, max_length: int, stride: int, max_question_length: int) -> int:
    """Return how many windows the training split has in the task's format."""
    split = load_split(task, "train")
    lengths = np.minimum(split.question_lengths, max_question_length)
    windows = cut_windows(lengths, split.context_lengths, max_length, stride)
    return int((split.answers[windows.question, 0] != NOT_LOCATED).sum())


def main() -> None:
    """Read the command line and write the options."""
    parser = make_parser(__doc__, "`maelm prepare-squad`")
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--doc-stride", type=int, required=True)
    parser.add_argument("--max-question-length", type=int, required=True)
    args = parser.parse_args()
    try:
        windows = training_windows(args.task, args.max_length, args.doc_stride, args.max_question_length)
        version = load_split(args.task, "valid").texts.version
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    words = [
        *encoder_options(args.checkpoint),
        *schedule_options(windows, args),
        *["--best-checkpoint-metric", "f1" if version == "1.1" else "best_f1", "--maximize-best-checkpoint-metric"],
    ]
    write(words)


if __name__ == "__main__":
    main()
