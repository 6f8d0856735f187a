"""Answers for ``maelm predict``."""

import argparse
import json

from fairseq_maelm.files.atomic import write_json
from fairseq_maelm.finetuning.predicted import Predicted, hub_of
from fairseq_maelm.finetuning.squad.inference import score_windows
from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.prepared import load_split
from fairseq_maelm.finetuning.squad.reading import read_squad
from fairseq_maelm.finetuning.squad.spans import best_of_questions, null_odds
from fairseq_maelm.options import UsageError


def predict_input(args: argparse.Namespace) -> Predicted:
    """Answer the questions of a SQuAD file or of a prepared split.

    Raises:
        UsageError: an option for unanswerable questions is given with SQuAD 1.1, which has none.
    """
    hub = hub_of(args)
    if args.input.is_dir():
        split = load_split(args.input, args.split)
    else:
        split, _ = build_split(hub.tokenizer.encoder, read_squad(args.input), "questions")
    may_have_none = hub.task.version_of(split) == "2.0"
    if not may_have_none and (args.null_odds or args.threshold) is not None:
        raise UsageError("all questions of SQuAD 1.1 have answers: leave out --threshold and --null-odds")
    dataset = hub.task.dataset_of(split, "questions")
    windows = score_windows(hub, dataset, 1, args.batch_size, progress=True)[:, 0]
    best = best_of_questions(windows, dataset.windows.first)
    answers = dict(zip(split.texts.identities, split.answer_texts(best["first"], best["last"])))
    threshold = hub.task.cfg.null_threshold if args.threshold is None else args.threshold
    if may_have_none:
        odds = dict(zip(answers, null_odds(best).tolist()))
        answers = {identity: "" if odds[identity] > threshold else text for identity, text in answers.items()}
        if args.null_odds is not None:
            write_json(args.null_odds, odds)
    metrics = None if split.texts.answers is None else hub.task.metrics(dataset, best, threshold)
    return Predicted(json.dumps(answers, indent=1) + "\n", metrics)
