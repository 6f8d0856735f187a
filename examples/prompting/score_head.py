#!/usr/bin/env python3
"""Score a checkpoint of stock sentence_prediction on a table, with a prompt's metrics; one line of JSON."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm import MaelmHubInterface, MaelmModel
from fairseq_maelm.finetuning.prompting.prompts import BUILT_IN
from fairseq_maelm.finetuning.prompting.tables import read_table
from fairseq_maelm.finetuning.sentence_metrics import compute_metrics

HEAD = "sentence_classification_head"
BATCH = 32


def predict(hub: MaelmHubInterface, sentences: list[tuple[str, ...]]) -> np.ndarray:
    """Return <float32>[examples, outputs], the head's outputs; sentences are cut to the model's positions."""
    tokens = [hub.encode(*each, max_length=hub.model.max_positions()) for each in sentences]
    order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
    outputs: dict[int, np.ndarray] = {}
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        padded = torch.nn.utils.rnn.pad_sequence(
            [tokens[place] for place in batch], batch_first=True, padding_value=hub.dictionary.pad()
        )
        with torch.no_grad():
            scores = hub.predict(HEAD, padded, return_logits=True).cpu().numpy()
        outputs.update(zip(batch, scores))
    return np.stack([outputs[place] for place in range(len(tokens))])


def main() -> None:
    """Read the command line and write the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("sentences", type=Path, help="folder of `maelm prepare sentences`")
    parser.add_argument("table", type=Path)
    parser.add_argument("--task", required=True, choices=BUILT_IN)
    args = parser.parse_args()
    prompt = BUILT_IN[args.task]
    hub = MaelmModel.from_pretrained(str(args.checkpoint.parent), args.checkpoint.name, str(args.sentences.resolve()))
    hub = hub.cuda() if torch.cuda.is_available() else hub
    examples = read_table(args.table, prompt.sentences)
    outputs = predict(hub, [example.sentences for example in examples])
    if prompt.bounds:
        predicted = outputs[:, 0]
    else:
        labels = hub.task.label_dictionary
        names = [labels[labels.nspecial + place] for place in range(outputs.shape[1])]
        predicted = np.array([prompt.target(names[place]) for place in outputs.argmax(axis=1)])
    targets = np.array([prompt.target(str(example.label)) for example in examples])
    metrics = compute_metrics(prompt.metrics, targets, predicted)
    sys.stdout.write(json.dumps({name: round(value, 2) for name, value in metrics.items()}) + "\n")


if __name__ == "__main__":
    main()
