#!/usr/bin/env python3
"""Write the options of fairseq-train that a retrieval task and a checkpoint decide, a word a line; for finetune.sh."""

import sys
from pathlib import Path

import numpy as np

# The package is found beside the examples when it is not installed, and the encoder's options beside this folder.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "finetuning"))

from task_options import encoder_options, make_parser, schedule_options, write

from fairseq_maelm.finetuning.retrieval.prepared import group_relevant, judgments_file


def main() -> None:
    """Read the command line and write the options."""
    parser = make_parser(__doc__, "`maelm prepare-retrieval`")
    parser.add_argument("--max-tokens", type=int, required=True)
    args = parser.parse_args()
    for split in ("train", "valid"):
        if not judgments_file(args.task, split).exists():
            raise SystemExit(
                f"there is no {judgments_file(args.task, split)}: make the folder with `maelm prepare-retrieval`"
                + (", with --valid-fraction where the task has no dev.tsv" if split == "valid" else "")
            )
    encoder = encoder_options(args.checkpoint)
    positions = int(encoder[encoder.index("--max-positions") + 1])
    pairs = sum(map(len, group_relevant(np.load(judgments_file(args.task, "train"))).relevant))
    words = [
        *encoder,
        *["--tokens-per-sample", str(min(args.max_tokens, positions))],
        *schedule_options(pairs, args),
    ]
    write(words)


if __name__ == "__main__":
    main()
