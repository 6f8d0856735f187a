#!/usr/bin/env python3
"""Pretrain the small encoders of the table in examples/README.md, MAE-LM and MLM, on equal data.

The same command goes on after an interruption. On two CPU cores, one for each encoder, it takes an hour and a half.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study

from fairseq_maelm.arguments import CommandParser, existing_path, number
from fairseq_maelm.sweep.jobs import Job, Process
from fairseq_maelm.sweep.runner import add_runner_arguments, runner_of, sitting
from fairseq_maelm.sweep.store import study_folder
from fairseq_maelm.train_command import Machine, words_of

ROWS: dict[str, dict[str, Any]] = {
    "mae-lm": {"masked-input": "dropped", "decoder-layers": 1},
    "mlm": {"masked-input": "kept", "decoder-layers": 0},
}
PRETRAINING = {
    "arch": "maelm_tiny", "encoder-layers": 4, "encoder-embed-dim": 192, "encoder-ffn-embed-dim": 768,
    "encoder-attention-heads": 6, "init-std": 0.04, "embedding-init-std": 0.065, "dropout": 0, "attention-dropout": 0,
    "max-positions": 512, "initial-output-bias": "frequencies", "protect-special-tokens": True, "mask-prob": 0.4,
    "sample-break-mode": "none", "lr": 1e-3, "validate-interval-updates": 1000, "save-interval-updates": 100,
    "keep-interval-updates": 1, "log-interval": 50,
}  # fmt: skip
# Tokens of a sequence, tokens of an update, updates: from short sequences to long ones, because a small model does not
# learn in hours from long ones alone that neighbors tell about a masked token. The learning rate falls in the last.
STAGES = ((8, 2048, 800), (32, 4096, 400), (64, 4096, 1500), (128, 8192, 1700))


def stage(row: str, number: int, output: Path, share: float, gpu: bool, slot: str) -> Process:
    """Return the command of a stage, from 1, of an encoder."""
    length, tokens, updates = STAGES[number - 1]
    updates = max(2, int(updates * share))
    own = {"tokens-per-sample": length, "max-tokens": tokens, "max-update": updates, "warmup-updates": updates // 20}
    own |= {"lr-scheduler": "fixed"} if number < len(STAGES) else {
        "lr-scheduler": "polynomial_decay", "total-num-update": updates,
    }  # fmt: skip
    if number > 1:
        own["finetune-from-model"] = output / row / f"stage_{number - 1}" / "checkpoint_last.pt"
    machine = (Machine(1, "bf16") if gpu else Machine(0, "fp32")).options()
    options = {**PRETRAINING, **machine, **ROWS[row], **own}
    return Process(study.pretraining(output / "data", output / row / f"stage_{number}", options), {}).on(slot)


def main() -> None:
    """Read the command line, do what is not done yet, and print the checkpoints."""
    parser = CommandParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "output", type=Path, metavar="OUTPUT",
        help="folder for data (the vocabulary and the binarized text), mae-lm and mlm, with a folder for each stage",
    )  # fmt: skip
    parser.add_argument(
        "texts", type=existing_path, nargs="+", metavar="TEXT",
        help="files with a paragraph a line, blank lines between documents; the table's is 189 MB of English Wikipedia",
    )  # fmt: skip
    parser.add_argument("--share", type=number(float, 0, 1), default=1.0, metavar="X", help="fraction of the updates")
    parser.add_argument("--pieces", type=number(int, 1), default=4000, metavar="N", help="pieces of the vocabulary")
    add_runner_arguments(parser)
    args = parser.parse_args()
    output = args.output.resolve()
    with sitting("pretrain.py"):
        runner = runner_of(args, jobs=2)
        options = {"output": output / "data", "vocabulary-size": args.pieces, "valid-fraction": 0.004}
        words = ["maelm", "prepare", "corpus", *(str(path.resolve()) for path in args.texts), *words_of(options)]
        corpus = Job("corpus", output / "runs" / "corpus.json", lambda slot: Process(words, {}), resumes=True)
        for row in ROWS:
            jobs = corpus.followers
            for place in range(1, len(STAGES) + 1):
                train = partial(stage, row, place, output, args.share, runner.gpus > 0)
                marker = output / row / f"stage_{place}.json"
                jobs.append(Job(f"{row}, stage {place}", marker, train, study.last_loss, resumes=True))
                jobs = jobs[-1].followers
        if runner.dry_run:
            runner.do([corpus])
            return
        texts = {str(path.resolve()): path.stat().st_size for path in args.texts}
        with study_folder(output, {"texts": texts, "share": args.share, "pieces": args.pieces}):
            runner.do([corpus])
    for row in ROWS:
        print(f"{row}: {output / row}/stage_{len(STAGES)}/checkpoint_last.pt")


if __name__ == "__main__":
    main()
