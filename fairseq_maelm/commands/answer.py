"""The command ``maelm answer``."""

import argparse
import json
import sys
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint, add_vocabulary
from fairseq_maelm.finetuning.squad.kind import add_threshold
from fairseq_maelm.options import add_allow_unknown, add_device, add_json, existing_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm answer``."""
    parser.description = (
        "Answers questions about a text of any length. Prints for each question the answer, quoted from the text, "
        "with its character offsets [begin, end), counted from 0, and its probability among the best answers and 'no "
        "answer'."
    )
    parser.add_argument("text", type=existing_path, metavar="TEXT", help="file of UTF-8 text")
    parser.add_argument("questions", nargs="+", metavar="QUESTION", help="question about the text")
    add_checkpoint(parser, "checkpoint fine-tuned on SQuAD")
    add_vocabulary(parser)
    add_allow_unknown(parser)
    add_threshold(parser)
    add_json(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Print the answers; with ``--json``, one line per question with all answers that were found."""
    # These import torch and fairseq.
    from fairseq_maelm.finetuning.squad.inference import answer_questions, choose
    from fairseq_maelm.models.hub import open_checkpoint
    from fairseq_maelm.text.unknown import check_known

    try:
        # Line ends are kept, because offsets count every character of the file.
        text = args.text.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.text} is not UTF-8 ({error.reason} at byte {error.start})") from error
    hub = open_checkpoint(args.checkpoint, args.vocabulary, args.device)
    lists = answer_questions(hub, text, args.questions, progress=len(text) > 100_000)
    check_known(hub.tokenizer.encoder, args.text, args.allow_unknown)
    for question, answers in zip(args.questions, lists):
        chosen = choose(hub, answers, args.threshold)
        if args.json:
            content = {"question": question, **chosen._asdict(), "answers": [each._asdict() for each in answers]}
            sys.stdout.write(json.dumps(content) + "\n")
        else:
            sys.stdout.write(f"{question}\n    {_describe(chosen)}\n")


def _describe(chosen: Any) -> str:
    if chosen.begin < 0:
        return f"no answer  (probability {chosen.probability:.3f})"
    place = f"characters {chosen.begin} to {chosen.end}, probability {chosen.probability:.3f}"
    return f"{' '.join(chosen.text.split())}  ({place})"
