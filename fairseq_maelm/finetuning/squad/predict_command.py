"""The sub-command ``maelm predict-squad``."""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.files import write_bytes
from fairseq_maelm.finetuning.squad.dataset import SquadDataset
from fairseq_maelm.finetuning.squad.inference import (
    SpanAnswer,
    best_answers,
    check_answers,
    n_best_lists,
    score_windows,
)
from fairseq_maelm.finetuning.squad.scoring import BEST_SPANS, NULL_ODDS
from fairseq_maelm.finetuning.squad.spans import QuestionSpans
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
    parser.add_argument("--data", required=True, type=Path, metavar="TASK", help="folder of `maelm prepare-squad`")
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
    """Predicts and writes the files; the metrics also to standard output.

    Raises:
        OSError: if the checkpoint or the split is missing.
        ValueError: if the checkpoint cannot answer, or a file exists already.
    """
    check_device(args.device)
    files = [args.output / name for name in (PREDICTIONS, BEST_SPANS, NULL_ODDS, N_BEST, METRICS)]
    if existing := [str(path) for path in files if path.exists()]:
        raise ValueError(f"{', '.join(existing)} exist already: name another --output")
    hub = load(str(args.checkpoint.parent), args.checkpoint.name, str(args.data.absolute())).to(args.device)
    check_answers(hub)
    hub.task.load_dataset(args.split)
    dataset = hub.task.datasets[args.split]
    if dataset.training:
        # Training leaves some questions out; here all are answered.
        dataset = hub.task.dataset_of(dataset.split, args.split)
    candidates = score_windows(hub, dataset, hub.task.decoding.n_best, progress=True)
    spans = best_answers(dataset, candidates)
    threshold = hub.task.cfg.null_threshold if args.threshold is None else args.threshold
    nulls = hub.task.version_of(dataset.split) == "2.0"
    lists = n_best_lists(dataset, candidates, hub.task.decoding.n_best, nulls)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, content in _contents(dataset, spans, lists, threshold if nulls else None).items():
        _write(args.output / name, content)
    if dataset.split.texts.answers is not None:
        metrics = hub.task.metrics(dataset, spans, threshold)
        _write(args.output / METRICS, metrics)
        sys.stdout.write(json.dumps(metrics, indent=2) + "\n")


def _contents(
    dataset: SquadDataset, spans: QuestionSpans, lists: list[list[SpanAnswer]], threshold: float | None
) -> dict[str, dict[str, Any]]:
    identities = dataset.split.texts.identities
    best = {
        identity: dataset.split.answer_text(number, int(spans.first[number]), int(spans.last[number]))
        for number, identity in enumerate(identities)
    }
    n_best = {identity: [answer._asdict() for answer in answers] for identity, answers in zip(identities, lists)}
    if threshold is None:
        return {PREDICTIONS: best, N_BEST: n_best}
    odds = dict(zip(identities, spans.odds.tolist()))
    given = {identity: "" if odds[identity] > threshold else text for identity, text in best.items()}
    return {PREDICTIONS: given, BEST_SPANS: best, NULL_ODDS: odds, N_BEST: n_best}


def _write(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode("ascii"))
    logger.info("wrote %s", path)
