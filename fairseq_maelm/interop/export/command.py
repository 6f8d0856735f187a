"""The sub-command ``maelm export``."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_maelm.interop.export.configuration import ARCHITECTURES, FORMATS
from fairseq_maelm.interop.export.run import ExportSettings, export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm export``."""
    parser.description = (
        "Turns a checkpoint into a folder of Hugging Face transformers: configuration, weights, tokenizer, model card. "
        "Both sides are run and compared before the folder gets its name; what a format cannot hold exactly is refused."
    )
    parser.add_argument("checkpoint", type=Path, help="file of pretraining or fine-tuning")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the prepared data, or the data folder of fine-tuning: dict.txt, tokenizer, labels, manifest (the "
        "checkpoint's own folder, where training lays all of them but the manifest)",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--format",
        dest="form",
        required=True,
        choices=(*FORMATS, "onnx"),
        help="mpnet: stock MPNet, needs no code of ours anywhere, only for T5 buckets 32/128; maelm: every model, with "
        "its code in the folder (trust_remote_code=True) or by `import fairseq_maelm.hf`; onnx: encoders and heads for "
        "runtimes without torch",
    )
    parser.add_argument(
        "--architecture",
        choices=tuple(ARCHITECTURES),
        help="what the folder is for (what the checkpoint was trained for; in the format mpnet, the encoder of MAE-LM)",
    )
    parser.add_argument("--head", metavar="NAME", help="which fine-tuned head, if there are several")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="names of the head's outputs, one a line (those in --data)"
    )
    parser.add_argument("--name", help="of the model, for its card (the folder's)")
    parser.add_argument("--license", metavar="SPDX", help="of the model, for its card (to be filled in)")
    parser.add_argument(
        "--int8", action="store_true", help="onnx: a second file in 8 bits, and what it loses on a sample of texts"
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="onnx: the sample for --int8, a text a line (bundled hard strings)"
    )
    parser.add_argument(
        "--replace", action="store_true", help="rename an existing folder to DIR.old-1 when the new one is whole"
    )


def run(args: argparse.Namespace) -> None:
    """Exports, and writes to standard output what was compared and where the folder is.

    Raises:
        FileNotFoundError: a file is missing.
        FileExistsError: the folder exists.
        ValueError: the checkpoint cannot be exported like this, or the verification fails.
    """
    settings = ExportSettings(**{field.name: getattr(args, field.name) for field in fields(ExportSettings)})
    if settings.form == "onnx":
        from fairseq_maelm.interop.onnx.run import export_onnx as chosen
    else:
        chosen = export
    done = chosen(args.checkpoint, args.data, args.output, settings)
    for line in [*(each.describe() for each in done.agreements), *done.remarks]:
        sys.stdout.write(f"{line}\n")
