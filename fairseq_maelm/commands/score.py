"""The command ``maelm score``: sentences and minimal pairs scored by a masked language model."""

import argparse
import json
import sys

from fairseq_maelm import options
from fairseq_maelm.checkpoints.locate import add_checkpoint, add_vocabulary
from fairseq_maelm.options import existing_path
from fairseq_maelm.scoring.reading import METHODS

AFTER_INTERRUPT = "the same command resumes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm score``."""
    parser.description = (
        "Scores sentences by pseudo-log-likelihood: the sum of the log-probabilities, in nats, that a masked language "
        "model gives each token while that token is hidden. For minimal pairs it reports how often the good sentence "
        "scores higher; ties count half, and as right in a second number. The same command resumes an interrupted run."
    )
    parser.add_argument(
        "texts", nargs="+", type=existing_path, metavar="TEXTS",
        help="files of sentences, one per line, or of sequences (FASTA), or files of pairs: .tsv (good sentence, tab, "
        "bad sentence), .jsonl with the fields sentence_good and sentence_bad (BLiMP), or a folder of .jsonl files",
    )  # fmt: skip
    add_checkpoint(parser, "pretrained checkpoint")
    add_vocabulary(parser)
    options.add_allow_unknown(parser)
    options.add_output(parser, "new folder for the scores")
    parser.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="what to hide while a token is scored: only this token, "
        "or also the rest of its word (Kauf and Ivanova, 2023)",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=existing_path, metavar="FOLDER", help="--output folder of another model's run on the same "
        "pairs; the difference between the models is reported with its 95 %% interval",
    )  # fmt: skip
    parser.add_argument(
        "--first", type=options.number(int, 1), metavar="N", help="score only the first N sentences or pairs of each "
        "file",
    )  # fmt: skip
    parser.add_argument("--precision", choices=options.PRECISIONS, default="fp32", help="precision of the computation")
    parser.add_argument(
        "--batch-tokens", type=options.number(int, 1), default=4096, metavar="N", help="number of tokens in a batch"
    )
    options.add_json(parser)
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Score the sentences, and print the summary."""
    from fairseq_maelm.scoring.results import score_files, table

    settings = {name: getattr(args, name) for name in ("method", "first", "precision", "batch_tokens")}
    model = (args.checkpoint, args.vocabulary, args.device)
    summary = score_files(args.texts, args.output, *model, settings, args.compare, args.allow_unknown)
    sys.stdout.write(json.dumps(summary) + "\n" if args.json else table(summary))
