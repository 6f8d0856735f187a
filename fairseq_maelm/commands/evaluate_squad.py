"""The command ``maelm evaluate squad``."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import read_json, refuse_existing, write_bytes
from fairseq_maelm.finetuning.squad.reading import read_squad
from fairseq_maelm.finetuning.squad.scoring import LOGIT_THRESHOLD, OFFICIAL_THRESHOLD, score_predictions
from fairseq_maelm.options import UsageError, add_json, add_output, existing_path, number

logger = logging.getLogger(__name__)

# A file of this name contains logits even if all its values are in [0, 1].
_NULL_ODDS = "null_odds.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm evaluate squad``."""
    parser.description = (
        "Scores predictions as the official evaluation of SQuAD 1.1 and 2.0 does, in percent. With --null-odds it "
        "also finds the best threshold for 'no answer'."
    )
    parser.add_argument("data", type=existing_path, metavar="DATA_JSON", help="questions with their answers")
    parser.add_argument(
        "predictions",
        type=existing_path,
        metavar="PREDICTIONS_JSON",
        help="predictions: a JSON object that maps ids to texts",
    )
    parser.add_argument(
        "--null-odds", type=existing_path, metavar="FILE",
        help="JSON file that maps each question's id to its 'no answer' score: probabilities, or the logits that "
        "`maelm predict --null-odds --threshold inf` writes",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=number(float), metavar="X",
        help="a question counts as unanswered if its score in --null-odds exceeds this threshold (default: 1 for "
        "probabilities, as in the official script; 0 for logits, as in `maelm predict`)",
    )  # fmt: skip
    parser.add_argument(
        "--squad-version", choices=("auto", "1.1", "2.0"), default="auto",
        help="version of the scoring rules; auto takes it from the data",
    )  # fmt: skip
    add_output(parser, "new file for the metrics", metavar="FILE", required=False)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Score the predictions, and print the metrics or save them to ``--output``.

    Raises:
        UsageError: the options contradict each other or the data.
    """
    if args.output is not None:
        refuse_existing(args.output)
    if args.threshold is not None and args.null_odds is None:
        raise UsageError("--threshold applies to the scores in --null-odds: give that file too")
    source = read_squad(args.data)
    if not source.has_answers:
        raise ValueError(f"{args.data} has no answers to compare the predictions with")
    version = source.version if args.squad_version == "auto" else args.squad_version
    odds = None if args.null_odds is None else _read_object(args.null_odds, (int, float), "numbers")
    if odds is not None and version == "1.1":
        raise UsageError("with version 1.1 every question has an answer: omit --null-odds")
    predictions = _read_object(args.predictions, str, "texts")
    threshold = OFFICIAL_THRESHOLD if odds is None else _threshold(args, odds, predictions)
    answers = {each.identity: each.answers for each in source.questions}
    metrics = score_predictions(answers, version, predictions, odds, threshold)
    text = json.dumps(metrics, indent=2) + "\n"
    if not args.json:
        width = max(map(len, metrics))
        text = "".join(f"{name:{width}}  {round(value, 2)}\n" for name, value in metrics.items())
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_bytes(args.output, text.encode("ascii"))


def _threshold(args: argparse.Namespace, odds: Mapping[str, float], predictions: Mapping[str, str]) -> float:
    """Return the no-answer threshold, after checking that it fits the odds and the predictions.

    Odds are logits if a value is outside of [0, 1] or if the file has the name ``_NULL_ODDS``.
    """
    file, given = args.null_odds, args.threshold
    if file.name != _NULL_ODDS and all(0.0 <= value <= 1.0 for value in odds.values()):
        if given is not None and not 0.0 <= given <= 1.0:
            raise UsageError(
                f"--threshold {given:g} is in logits, but {file} has probabilities: give a threshold from 0 to 1"
            )
        return OFFICIAL_THRESHOLD if given is None else float(given)
    empty = sum(not text for text in predictions.values())
    if empty and given is None:
        raise ValueError(
            f"{args.predictions} leaves {empty} questions unanswered, so no threshold can be found for the logits in "
            f"{file}: omit --null-odds, or predict again with `maelm predict --threshold inf`"
        )
    if empty:
        logger.warning("%s leaves %d questions unanswered, also for best_exact and best_f1", args.predictions, empty)
    threshold = LOGIT_THRESHOLD if given is None else float(given)
    logger.info("%s has logits; questions with logits above %g count as unanswered", file, threshold)
    return threshold


def _read_object(path: Path, kind: Any, what: str) -> dict[str, Any]:
    """Read a JSON object whose values are all of one kind."""
    content = read_json(path, strict=True)
    for identity, value in content.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{path} must map question ids to {what}, but maps {identity!r} to {value!r}")
    return content
