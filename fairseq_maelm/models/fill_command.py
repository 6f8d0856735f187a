"""The sub-command ``maelm fill``: what a pretrained checkpoint proposes for masked tokens."""

import argparse
import json
import sys
from pathlib import Path
from typing import cast

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.models.hub import MaskCandidate, find_checkpoint, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm fill``."""
    parser.description = (
        "Proposes tokens for every <mask> of the texts, each with its probability over the whole vocabulary."
    )
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="with one <mask> or more")
    parser.add_argument(
        "--checkpoint", required=True, type=Path, help="of pretraining: a file, or the folder of a training run"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="with the vocabulary (default: the folder of the checkpoint)"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="candidates for each mask (default: 5)")
    parser.add_argument("--json", action="store_true", help="write one line of JSON for each text")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Write the candidates to standard output.

    Raises:
        OSError: the checkpoint or its vocabulary is missing.
        ValueError: a text has no mask, or the checkpoint cannot fill any.
    """
    check_device(args.device)
    if args.top < 1:
        raise ValueError(f"--top must be 1 at least and is {args.top}")
    checkpoint = find_checkpoint(args.checkpoint)
    data = (args.data or checkpoint.parent).absolute()
    hub = load(str(checkpoint.parent), checkpoint.name, str(data)).to(args.device)
    for text, masks in zip(args.texts, cast(list[list[list[MaskCandidate]]], hub.fill_mask(args.texts, args.top))):
        sys.stdout.write(_as_json(text, masks) if args.json else _as_text(text, masks))


def _as_json(text: str, masks: list[list[MaskCandidate]]) -> str:
    return json.dumps({"text": text, "masks": [[each._asdict() for each in mask] for mask in masks]}) + "\n"


def _as_text(text: str, masks: list[list[MaskCandidate]]) -> str:
    lines = [text]
    for number, mask in enumerate(masks, 1):
        lines += [f"  mask {number}  {each.probability:.3f}  {each.token}" for each in mask]
    return "\n".join(lines) + "\n"
