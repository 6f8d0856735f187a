"""The predictions of ``maelm predict`` for checkpoints of this task."""

import argparse

from fairseq_maelm.finetuning.predicted import Predicted, table_text
from fairseq_maelm.models.classification import score_texts
from fairseq_maelm.models.hub import open_checkpoint

from .task import HEAD, f1, read_examples


def predict_input(args: argparse.Namespace) -> Predicted:
    """Write the topics and the text of each line; if some line has labels, the metric is F1."""
    hub = open_checkpoint(args.checkpoint, args.vocabulary, args.device)
    labels = hub.task.labels
    texts, targets = read_examples(args.input, labels)
    found = (score_texts(hub, texts, HEAD, args.batch_size).sigmoid() >= args.least).numpy()
    names = [",".join(label for label, is_there in zip(labels, row) if is_there) for row in found]
    text = table_text([("topics", "text"), *zip(names, texts)])
    right, named = (found * targets).sum(), found.sum() + targets.sum()
    return Predicted(text, {"f1": f1(right, named)} if targets.any() else None)
