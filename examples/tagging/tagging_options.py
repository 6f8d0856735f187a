#!/usr/bin/env python3
"""Write the options of fairseq-train that a tagging task and a checkpoint decide, one word a line; for finetune.sh."""

import sys
from pathlib import Path

# The package is found beside the examples when it is not installed, and the encoder's options beside this folder.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "finetuning"))

from task_options import encoder_options, make_parser, schedule_options, write

from fairseq_maelm.finetuning.tagging.prepared import TaggedSplit, read_settings


def main() -> None:
    """Read the command line and write the options."""
    args = make_parser(__doc__, "`maelm prepare-tagging`").parse_args()
    try:
        settings = read_settings(args.task)
        sentences = len(TaggedSplit.load(args.task / "train.npz").word_counts)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    encoder = encoder_options(args.checkpoint)
    positions = int(encoder[encoder.index("--max-positions") + 1])
    words = [
        *encoder,
        *["--tokens-per-sample", str(min(512, positions)), "--window-overlap", str(min(64, positions // 4))],
        *["--best-checkpoint-metric", "f1" if settings.has_entities else "accuracy"],
        *schedule_options(sentences, args),
    ]
    write(words)


if __name__ == "__main__":
    main()
