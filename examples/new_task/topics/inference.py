"""The predictions of ``maelm predict`` for checkpoints of this task."""

import argparse
from functools import partial
from typing import Any

from fairseq_maelm.finetuning.predicted import Predicted, predict_rows
from fairseq_maelm.models.classification import score_texts

from .task import TopicsTask, read_examples


def predict_input(hub: Any, args: argparse.Namespace) -> Predicted:
    """Write the topics, their probabilities and the text of each line, and compute the metrics."""
    run = partial(score_texts, hub, head=TopicsTask.head, batch_size=args.batch_size)
    return predict_rows(read_examples(args.input), run, hub.labels)
