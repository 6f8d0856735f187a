"""Fit logistic regressions to the frozen states of encoders, layer by layer; layer 0 is the embeddings.

    python examples/probing/probe.py --train train.tsv --test test.tsv ours=maelm-english-14m-uncased published=imported

The tables have a text and a label per line, or two texts and a label, separated by tabs. The output is a line of JSON
for each model, layer and pooling: the accuracy on the test table. Each model is measured a second time with random
weights, and scores mean little without this baseline. Pairs become |u - v| and u * v, as in SentEval.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fairseq_maelm import MaelmModel

POOLINGS = ("mean", "first")
# scikit-learn's C, the inverse strength of the L2 penalty.
INVERSE_PENALTY = 0.1


def read_table(path: Path) -> tuple[list[list[str]], list[str]]:
    """Return the columns of texts, and the labels."""
    with path.open(encoding="utf-8", newline="") as lines:
        *texts, labels = zip(*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), strict=True)
    return [list(column) for column in texts], list(labels)


@torch.inference_mode()
def states_of(hub: Any, texts: list[str], max_length: int) -> np.ndarray:
    """Return pooled states <float32>[L + 1, poolings, texts, D]; the mean leaves <s> and </s> out."""
    rows = []
    for text in texts:
        layers = hub.extract_features(hub.encode(text, max_length=max_length, masks=False), return_all_hiddens=True)
        own = [states[0, 1:-1] if states.shape[1] > 2 else states[0] for states in layers]
        rows.append([[part.mean(dim=0).tolist(), states[0, 0].tolist()] for part, states in zip(own, layers)])
    return np.moveaxis(np.array(rows, dtype=np.float32), 0, 2)


def features_of(hub: Any, columns: list[list[str]], max_length: int) -> np.ndarray:
    """Return features <float32>[L + 1, poolings, rows, D], or with 2 D for pairs."""
    states = [states_of(hub, column, max_length) for column in columns]
    if len(states) == 1:
        return states[0]
    return np.concatenate([np.abs(states[0] - states[1]), states[0] * states[1]], axis=-1)


def main() -> None:
    """Print the accuracies of all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=PATH", help="name and checkpoint of an encoder")
    parser.add_argument("--train", type=Path, required=True, help="table for the regressions")
    parser.add_argument("--test", type=Path, required=True, help="table for the accuracies")
    parser.add_argument("--max-length", type=int, default=128, help="maximum number of tokens (default: %(default)s)")
    args = parser.parse_args()
    (train, labels), (test, expected) = read_table(args.train), read_table(args.test)
    for name, _, path in (each.partition("=") for each in args.models):
        hub = MaelmModel.from_pretrained(path)
        for weights in ("trained", "random"):
            if weights == "random":
                torch.manual_seed(1)
                hub.model = MaelmModel(hub.config.model, hub.dictionary, predicts_masked_tokens=False).eval()
            fitted, tested = (features_of(hub, columns, args.max_length) for columns in (train, test))
            for layer, pooling in np.ndindex(fitted.shape[:2]):
                probe = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=1000))
                accuracy = probe.fit(fitted[layer, pooling], labels).score(tested[layer, pooling], expected)
                row = {"model": name, "weights": weights, "layer": layer, "pooling": POOLINGS[pooling]}
                print(json.dumps({**row, "accuracy": round(float(accuracy), 4)}), flush=True)


if __name__ == "__main__":
    main()
