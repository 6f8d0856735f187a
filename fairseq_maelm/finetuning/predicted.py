"""What every kind of fine-tuning gives to ``maelm predict``."""

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from fairseq_maelm.models.hub import MaelmHubInterface, load


class Predicted(NamedTuple):
    """The predictions for one input.

    Attributes:
        text: as the command writes it.
        metrics: where the input has labels.
    """

    text: str
    metrics: Mapping[str, float] | None


def hub_of(args: argparse.Namespace) -> MaelmHubInterface:
    """Load the checkpoint of ``maelm predict``, on its device, with the vocabulary and labels it was told to use."""
    return load(str(args.checkpoint.parent), args.checkpoint.name, str(args.vocabulary)).to(args.device)
