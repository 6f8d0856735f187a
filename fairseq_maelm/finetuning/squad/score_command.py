"""The sub-command ``maelm evaluate squad``."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.files import write_bytes
from fairseq_maelm.finetuning.squad.reading import load_json, read_squad
from fairseq_maelm.finetuning.squad.scoring import (
    BEST_SPANS,
    LOGIT_THRESHOLD,
    NULL_ODDS,
    OFFICIAL_THRESHOLD,
    score_predictions,
)

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm evaluate squad``, with the official script's names where it has the same."""
    parser.description = (
        "Scores predictions as the official evaluation of SQuAD 1.1 and 2.0 does, and writes the metrics as JSON (in "
        "percent). With the odds of no answer it also looks for the threshold that is best."
    )
    parser.add_argument("data", type=Path, metavar="DATA_JSON", help="the questions with their answers")
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS_JSON", help="an object: id -> text")
    parser.add_argument(
        "--na-prob-file",
        type=Path,
        metavar="JSON",
        help="an object: id -> probability or log-odds of no answer; with null_odds.json of `maelm predict-squad` give "
        "best_spans.json",
    )
    parser.add_argument(
        "--na-prob-thresh",
        type=float,
        metavar="T",
        help="odds above this mean no answer (1.0 for probabilities, as in the official script; 0 for log-odds, as in "
        "`maelm predict-squad`)",
    )
    parser.add_argument("--out-file", type=Path, metavar="JSON", help="write the metrics here instead")
    parser.add_argument(
        "--version", choices=("auto", "1.1", "2.0"), default="auto", help="by whose rules (that of the data)"
    )


def run(args: argparse.Namespace) -> None:
    """Scores, and writes the metrics to standard output or a file."""
    source = read_squad(args.data)
    if not source.has_answers:
        raise ValueError(f"{args.data} has no answers to score with")
    version = source.version if args.version == "auto" else args.version
    answers = {each.identity: each.answers for each in source.questions}
    odds = None if args.na_prob_file is None else _read_object(args.na_prob_file, (int, float), "numbers")
    if odds is not None and version == "1.1":
        raise ValueError("version 1.1 knows no questions without answer: leave --na-prob-file out")
    predictions = _read_object(args.predictions, str, "texts")
    threshold = OFFICIAL_THRESHOLD if odds is None else _threshold(args, odds, predictions)
    metrics = score_predictions(answers, version, predictions, odds, threshold, logger.warning)
    content = json.dumps(metrics, indent=2) + "\n"
    if args.out_file is None:
        sys.stdout.write(content)
    else:
        write_bytes(args.out_file, content.encode("ascii"))


def _threshold(args: argparse.Namespace, odds: Mapping[str, float], predictions: Mapping[str, str]) -> float:
    """The threshold of the odds of no answer, after a check that all files belong together.

    Log-odds are told from probabilities by a value outside of 0 to 1, or by the name that ``maelm predict-squad`` gives
    them: few and small ones could pass for probabilities.
    """
    file, given = args.na_prob_file, args.na_prob_thresh
    if file.name != NULL_ODDS and all(0.0 <= value <= 1.0 for value in odds.values()):
        if given is not None and not 0.0 <= given <= 1.0:
            raise ValueError(
                f"--na-prob-thresh {given:g} is in logits, and {file} holds probabilities: give one from 0 to 1"
            )
        return OFFICIAL_THRESHOLD if given is None else float(given)
    empty = sum(not text for text in predictions.values())
    if empty and given is None:
        raise ValueError(
            f"{args.predictions} has {empty} empty texts, so no answer is decided in it: score it without "
            f"--na-prob-file, or give the log-odds of {file} with predictions that are never empty ({BEST_SPANS} of "
            "predict-squad)"
        )
    if empty:
        logger.warning("%s has %d empty texts: best_exact and best_f1 cannot fill them", args.predictions, empty)
    threshold = LOGIT_THRESHOLD if given is None else float(given)
    logger.info("%s holds log-odds: no answer where they exceed %g", file, threshold)
    return threshold


def _read_object(path: Path, kind: Any, what: str) -> dict[str, Any]:
    """Read a JSON object whose values are all of one kind, or raise a ValueError."""
    content = load_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object of ids and {what}")
    for identity, value in content.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{path} has no {what[:-1]} for {identity!r} but {value!r}")
    return content
