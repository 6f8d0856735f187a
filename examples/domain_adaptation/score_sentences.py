#!/usr/bin/env python3
"""Score a fine-tuned classifier on a table of sentences and labels: macro F1 and accuracy in percent, as JSON."""

import argparse
import json
import sys
from pathlib import Path

import torch
from sklearn.metrics import accuracy_score, f1_score
from tqdm import tqdm

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm import MaelmModel

HEAD = "sentence_classification_head"


def main() -> None:
    """Read the command line, predict, and write the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("task", type=Path, help="folder of `maelm prepare sentences`")
    parser.add_argument("table", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    hub = MaelmModel.from_pretrained(str(args.checkpoint.parent), args.checkpoint.name, str(args.task.resolve()))
    rows = [line.split("\t") for line in args.table.read_text(encoding="utf-8").splitlines()]
    labels = hub.task.label_dictionary
    longest = hub.model.max_positions()
    predicted: list[str] = []
    with torch.no_grad():
        for start in tqdm(range(0, len(rows), args.batch_size), unit=" batches", mininterval=1):
            texts = [text for text, _ in rows[start : start + args.batch_size]]
            tokens = hub.encode_batch(texts, max_length=longest)
            best = hub.predict(HEAD, tokens).argmax(dim=1).tolist()
            predicted += [labels[labels.nspecial + number] for number in best]
    gold = [label for _, label in rows]
    metrics = {
        "macro F1": 100 * float(f1_score(gold, predicted, average="macro", zero_division=0)),
        "accuracy": 100 * float(accuracy_score(gold, predicted)),
    }
    partial = args.output.with_name(args.output.name + ".partial")
    partial.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    partial.replace(args.output)


if __name__ == "__main__":
    main()
