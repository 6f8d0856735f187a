"""The sub-command ``maelm score-squad``."""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.corpus.files import write_bytes
from fairseq_maelm.squad.reading import read_squad
from fairseq_maelm.squad.scoring import OFFICIAL_THRESHOLD, score_predictions

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm score-squad``, with the official script's names where it has the same."""
    parser.description = (
        "Scores predictions as the official evaluation of SQuAD 1.1 and 2.0 does, and writes the figures as JSON (in "
        "percent). With the odds of no answer it also looks for the threshold that is best."
    )
    parser.add_argument("data", type=Path, metavar="DATA_JSON", help="the questions with their answers")
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS_JSON", help="an object: id -> text")
    parser.add_argument("--na-prob-file", type=Path, metavar="JSON", help="an object: id -> odds of no answer")
    parser.add_argument(
        "--na-prob-thresh",
        type=float,
        default=OFFICIAL_THRESHOLD,
        metavar="T",
        help="odds above this mean no answer (1.0, which suits probabilities; for null_odds.json of "
        "`maelm predict-squad` give 0)",
    )
    parser.add_argument("--out-file", type=Path, metavar="JSON", help="write the figures here instead")
    parser.add_argument(
        "--version", choices=("auto", "1.1", "2.0"), default="auto", help="by whose rules (that of the data)"
    )


def run(args: argparse.Namespace) -> None:
    """Scores, and writes the figures to standard output or a file.

    Raises:
        ValueError: if a file is not as it must be.
    """
    source = read_squad(args.data)
    if not source.has_answers:
        raise ValueError(f"{args.data} has no answers to score with")
    version = source.version if args.version == "auto" else args.version
    answers = {each.identity: [answer.text for answer in each.answers] for each in source.questions}
    odds = None if args.na_prob_file is None else read_object(args.na_prob_file, (int, float), "numbers")
    if odds is not None and version == "1.1":
        raise ValueError("version 1.1 knows no questions without answer: leave --na-prob-file out")
    figures = score_predictions(
        answers, version, read_object(args.predictions, str, "texts"), odds, args.na_prob_thresh, logger.warning
    )
    content = json.dumps(figures, indent=2) + "\n"
    if args.out_file is None:
        sys.stdout.write(content)
    else:
        write_bytes(args.out_file, content.encode("ascii"))


def read_object(path: Path, kind: Any, what: str) -> dict[str, Any]:
    """Read a JSON object whose values are all of one kind.

    Raises:
        ValueError: if it is none.
    """
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object of ids and {what}")
    for identity, value in content.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{path} has no {what[:-1]} for {identity!r} but {value!r}")
    return content
