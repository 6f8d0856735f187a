"""The sub-command ``maelm import``."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm import``."""
    parser.description = (
        "Turns a masked language model from elsewhere into a checkpoint and a data folder for fairseq: Hugging Face "
        "folders of RoBERTa's or MPNet's shape, and checkpoints of fairseq's RoBERTa. Both models run on the same "
        "batch before the result gets its name; what cannot be exact is refused."
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="a folder that `hf download NAME --local-dir FOLDER` or save_pretrained has written, or a checkpoint file "
        "of fairseq's roberta; nothing is downloaded",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="the new folder")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="for a checkpoint: the folder with its dict.txt, and with sentencepiece.bpe.model or encoder.json and "
        "vocab.bpe (the checkpoint's own folder)",
    )


def run(args: argparse.Namespace) -> None:
    """Imports the model and writes to standard output what was compared and how to go on.

    Raises:
        FileNotFoundError: something of the source is missing.
        ValueError: the source cannot be imported exactly, or the output is there already.
    """
    from fairseq_maelm.interop.importing.run import CHECKPOINT_FILE, import_model

    imported = import_model(args.source, args.output, args.data)
    for agreement in imported.agreements:
        sys.stdout.write(f"{agreement.describe()}\n")
    sys.stdout.write(
        f"{imported.folder / CHECKPOINT_FILE}\n"
        f"model: {' '.join(imported.model_options)}\n"
        f"continued pretraining: --task maelm {' '.join(imported.task_options)}\n"
    )
    if not imported.reads_text:
        sys.stdout.write("text: the source has no tokenizer; train on data that were binarized with its dict.txt\n")
