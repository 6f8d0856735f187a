"""The result that every kind of fine-tuning returns to ``maelm predict``."""

import argparse
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairseq_maelm.models.classification import TextLabel
from fairseq_maelm.models.hub import MaelmHubInterface, load


class Predicted(NamedTuple):
    """The predictions for one input."""

    text: str  # the predictions as the command writes them
    metrics: Mapping[str, float] | None  # None for an input without labels


def value_lines(values: Iterable[float]) -> str:
    """Return predicted numbers as a table of one column."""
    return "value\n" + "".join(f"{value:.6g}\n" for value in values)


def label_lines(labels: Iterable[TextLabel]) -> str:
    """Return predicted labels and their probabilities as a table."""
    return "label\tprobability\n" + "".join(f"{label}\t{probability:.4f}\n" for label, probability in labels)


def hub_of(args: argparse.Namespace) -> MaelmHubInterface:
    """Load a command's checkpoint with its vocabulary and labels, onto its device."""
    vocabulary = (args.vocabulary or args.checkpoint.parent).absolute()
    return load(str(args.checkpoint.parent), args.checkpoint.name, str(vocabulary)).to(args.device)
