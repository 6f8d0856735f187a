"""The sub-command ``maelm embed``."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_maelm.devices import add_device_argument, check_device
from fairseq_maelm.finetuning.retrieval.embed import DTYPES, EmbedSettings, embed
from fairseq_maelm.finetuning.retrieval.pooling import POOLINGS, SIMILARITIES
from fairseq_maelm.modules.precision import PRECISIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm embed``."""
    parser.description = (
        "Embeds texts with the encoder of a checkpoint: one row of a .npy file for each text, in the file's order. An "
        "interrupted run resumes when the same command is given again."
    )
    parser.add_argument(
        "texts", type=Path, metavar="TEXTS", help=".jsonl with _id, text and perhaps title (BEIR), or a text a line"
    )
    parser.add_argument("--checkpoint", required=True, type=Path, help="of maelm_retrieval, or of any other task")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the checkpoint's dict.txt and sentencepiece.bpe.model (the folder of the checkpoint)",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="EMBEDDINGS", help="the new folder")
    group = parser.add_argument_group("instead of what the checkpoint was trained with (others: mean, cosine)")
    group.add_argument("--pooling", choices=POOLINGS, help="mean of the tokens' states, or the first one")
    group.add_argument("--similarity", choices=SIMILARITIES, help="embeddings compared by cosine get length 1")
    group.add_argument("--max-tokens", type=int, metavar="N", help="cut longer texts, <s> and </s> counted")
    group = parser.add_argument_group("how")
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="of the numbers in the file (float32)")
    group.add_argument("--precision", choices=PRECISIONS, default="fp32", help="that the model computes in (fp32)")
    add_device_argument(group)
    group.add_argument(
        "--batch-tokens", type=int, default=16_384, metavar="N", help="slots of a batch, padding counted (16384)"
    )
    group.add_argument("--allow-empty", action="store_true", help="embed empty texts instead of stopping at them")


def run(args: argparse.Namespace) -> None:
    """Embeds the texts and writes the folder's name to standard output."""
    check_device(args.device)
    args.data = args.data or args.checkpoint.parent
    embed(EmbedSettings(**{field.name: getattr(args, field.name) for field in fields(EmbedSettings)}))
    sys.stdout.write(f"{args.output}\n")
