"""The command ``maelm fill``: a pretrained checkpoint's predictions for masked tokens."""

import argparse
import json
import sys
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint, add_vocabulary
from fairseq_maelm.options import add_device, add_json, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm fill``."""
    parser.description = (
        "Predicts the tokens at every <mask> of the texts, with their probabilities over the whole vocabulary."
    )
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="text with at least one <mask>")
    add_checkpoint(parser, "pretrained checkpoint")
    add_vocabulary(parser)
    parser.add_argument("--top", type=number(int, 1), default=5, metavar="N", help="number of candidates for each mask")
    add_json(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Print the candidates for each mask.

    Raises:
        OSError: the vocabulary is missing.
        ValueError: the checkpoint has no LM head; or a text has no mask or is too long, which is raised after the
            candidates for all other texts are printed.
    """
    from fairseq_maelm.models.hub import open_checkpoint
    from fairseq_maelm.text.unknown import check_known

    hub = open_checkpoint(args.checkpoint, args.vocabulary, args.device)
    refused = []
    for text in args.texts:
        try:
            masks: Any = hub.fill_mask(text, args.top)
        except ValueError as error:
            refused.append(error)
        else:
            answer = {"text": text, "masks": [[each._asdict() for each in mask] for mask in masks]}
            sys.stdout.write(json.dumps(answer) + "\n" if args.json else _as_text(text, masks))
    check_known(hub.tokenizer.encoder, "the texts", allowed=True)
    if len(refused) > 1:
        raise ValueError(f"{refused[0]} ({len(refused)} of {len(args.texts)} texts were refused)") from refused[0]
    if refused:
        raise refused[0]


def _as_text(text: str, masks: Any) -> str:
    lines = [text]
    for place, mask in enumerate(masks, 1):
        lines += [f"  mask {place}  {each.probability:.3f}  {each.token}" for each in mask]
    return "\n".join(lines) + "\n"
