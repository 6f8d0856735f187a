"""The sub-command ``maelm answer``."""

import argparse
import json
import sys
from pathlib import Path

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.finetuning.squad.predict import SpanAnswer, answer_questions, check_answers, choose
from fairseq_maelm.models.hub import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm answer``."""
    parser.description = (
        "Answers questions about a text file of any length. For each question it writes the answer as it stands in the "
        "text, its first character and the one after its last (counted from 0, in characters and not in bytes), and "
        "how probable it is among the best answers and no answer."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of the task maelm_squad")
    parser.add_argument("text", type=Path, metavar="FILE", help="UTF-8 text")
    parser.add_argument("questions", nargs="+", metavar="QUESTION", help="one or more")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DATA",
        help="folder with the vocabulary: of the task, or pretraining (the folder of the checkpoint)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="no answer where it scores higher than the best text by more than this, in logits; inf always answers "
        "(the checkpoint's --null-threshold, usually 0)",
    )
    parser.add_argument("--json", action="store_true", help="write an object a line, with all answers that were found")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Answers and writes the answers to standard output."""
    check_device(args.device)
    try:
        # Line ends stay as they are: offsets count every character of the file.
        text = args.text.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.text} is not UTF-8 ({error.reason} at byte {error.start})") from error
    data = (args.data or args.checkpoint.parent).absolute()
    hub = load(str(args.checkpoint.parent), args.checkpoint.name, str(data)).to(args.device)
    check_answers(hub)
    threshold = hub.task.cfg.null_threshold if args.threshold is None else args.threshold
    # A bar would only stand in the way of a short text's answers.
    lists = answer_questions(hub, text, args.questions, progress=len(text) > 100_000)
    for question, answers in zip(args.questions, lists):
        chosen = choose(answers, threshold)
        sys.stdout.write(_line(question, chosen, answers) if args.json else _words(question, chosen))


def _words(question: str, chosen: SpanAnswer) -> str:
    if chosen.begin < 0:
        return f"{question}\n    no answer  (probability {chosen.probability:.3f})\n"
    place = f"characters {chosen.begin} to {chosen.end}, probability {chosen.probability:.3f}"
    return f"{question}\n    {' '.join(chosen.text.split())}  ({place})\n"


def _line(question: str, chosen: SpanAnswer, answers: list[SpanAnswer]) -> str:
    content = {"question": question, **chosen._asdict(), "answers": [answer._asdict() for answer in answers]}
    return json.dumps(content) + "\n"
