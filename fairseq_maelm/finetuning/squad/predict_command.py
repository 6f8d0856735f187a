"""The sub-command ``maelm predict-squad``."""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import refuse_existing, write_bytes
from fairseq_maelm.finetuning.squad.dataset import SquadDataset
from fairseq_maelm.finetuning.squad.predict import Candidates, check_answers, n_best_lists, score_windows
from fairseq_maelm.finetuning.squad.prepared import load_split
from fairseq_maelm.finetuning.squad.scoring import BEST_SPANS, NULL_ODDS
from fairseq_maelm.finetuning.squad.spans import best_of_questions, null_odds
from fairseq_maelm.models.hub import load

logger = logging.getLogger(__name__)

PREDICTIONS, N_BEST, METRICS = "predictions.json", "nbest.json", "metrics.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm predict-squad``."""
    parser.description = (
        f"Answers all questions of a prepared split. Writes {PREDICTIONS} (id -> text, as SQuAD wants it; no answer is "
        f"an empty text), {BEST_SPANS} (id -> the best text whatever no answer scores), {NULL_ODDS} (id -> how much "
        f"higher no answer scores than that text, in logits), {N_BEST} (id -> the best texts), and where the right "
        f"answers are known {METRICS}."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of the task maelm_squad")
    parser.add_argument("--data", required=True, type=Path, metavar="TASK", help="folder of `maelm prepare squad`")
    parser.add_argument("--split", default="valid", help="of it (valid)")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="no answer where its odds exceed this, in logits; best_f1_thresh of a validation set is a good one (the "
        "checkpoint's --null-threshold, usually 0)",
    )
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Predicts and writes the files; the metrics also to standard output."""
    check_device(args.device)
    refuse_existing(*(args.output / name for name in (PREDICTIONS, BEST_SPANS, NULL_ODDS, N_BEST, METRICS)))
    hub = load(str(args.checkpoint.parent), args.checkpoint.name, str(args.data.absolute())).to(args.device)
    check_answers(hub)
    # In training some questions are left out; here all are answered.
    dataset = hub.task.dataset_of(load_split(args.data, args.split), args.split)
    candidates = score_windows(hub, dataset, hub.task.cfg.n_best, progress=True)
    threshold = hub.task.cfg.null_threshold if args.threshold is None else args.threshold
    contents = contents_of(hub.task, dataset, candidates, threshold)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_bytes(args.output / name, (json.dumps(content, indent=1) + "\n").encode("ascii"))
        logger.info("wrote %s", args.output / name)
    if METRICS in contents:
        sys.stdout.write(json.dumps(contents[METRICS], indent=2) + "\n")


def contents_of(
    task: Any, dataset: SquadDataset, candidates: Candidates, threshold: float
) -> dict[str, dict[str, Any]]:
    """Return what each file holds, and what it holds of metrics where the right answers are known."""
    split, nulls = dataset.split, task.version_of(dataset.split) == "2.0"
    chosen = best_of_questions(candidates.rows, dataset.windows.first)
    lists = n_best_lists(dataset, candidates, task.cfg.n_best, nulls)
    identities = split.texts.identities
    best = dict(zip(identities, split.answer_texts(chosen["first"], chosen["last"])))
    contents: dict[str, dict[str, Any]] = {PREDICTIONS: best}
    if nulls:
        odds = dict(zip(identities, null_odds(chosen).tolist()))
        given = {identity: "" if odds[identity] > threshold else text for identity, text in best.items()}
        contents = {PREDICTIONS: given, BEST_SPANS: best, NULL_ODDS: odds}
    contents[N_BEST] = {identity: [each._asdict() for each in answers] for identity, answers in zip(identities, lists)}
    if split.texts.answers is not None:
        contents[METRICS] = task.metrics(dataset, chosen, threshold)
    return contents
