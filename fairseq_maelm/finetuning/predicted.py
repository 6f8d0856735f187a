"""The result that every kind of fine-tuning returns to ``maelm predict``."""

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from fairseq_maelm.models.hub import MaelmHubInterface, load


class Predicted(NamedTuple):
    """The predictions for one input.

    Attributes:
        text: the predictions as the command writes them.
        metrics: None for an input without labels.
    """

    text: str
    metrics: Mapping[str, float] | None


def hub_of(args: argparse.Namespace) -> MaelmHubInterface:
    """Load the checkpoint of ``maelm predict`` with its vocabulary and labels, onto its device."""
    return load(str(args.checkpoint.parent), args.checkpoint.name, str(args.vocabulary)).to(args.device)
