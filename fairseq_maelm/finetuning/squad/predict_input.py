"""Answers for ``maelm predict``."""

import argparse
import json

from fairseq_maelm.finetuning.predicted import Predicted, hub_of
from fairseq_maelm.finetuning.squad.predict import score_windows
from fairseq_maelm.finetuning.squad.predict_command import METRICS, PREDICTIONS, contents_of
from fairseq_maelm.finetuning.squad.prepare import build_split
from fairseq_maelm.finetuning.squad.prepared import load_split
from fairseq_maelm.finetuning.squad.reading import read_squad
from fairseq_maelm.text.imported import open_encoder


def predict_input(args: argparse.Namespace) -> Predicted:
    """Answer the questions of a SQuAD file or of a prepared split."""
    hub = hub_of(args)
    if args.input.is_dir():
        split = load_split(args.input, args.split)
    else:
        split, _ = build_split(open_encoder(args.vocabulary), read_squad(args.input), "questions")
    dataset = hub.task.dataset_of(split, "questions")
    candidates = score_windows(hub, dataset, hub.task.cfg.n_best, progress=True)
    contents = contents_of(hub.task, dataset, candidates, hub.task.cfg.null_threshold)
    return Predicted(json.dumps(contents[PREDICTIONS], indent=1) + "\n", contents.get(METRICS))
