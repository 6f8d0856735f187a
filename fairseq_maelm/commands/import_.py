"""The command ``maelm import``."""

import argparse
import sys
from pathlib import Path

from fairseq_maelm.checkpoints.locate import add_vocabulary
from fairseq_maelm.options import add_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm import``."""
    parser.description = (
        "Converts an encoder or masked language model to a checkpoint: Hugging Face folders with the architecture of "
        "BERT, RoBERTa, MPNet or ModernBERT, and checkpoints of fairseq's RoBERTa. The result is a folder like that of "
        "`maelm export --complete`. It appears only after its model was compared with the source; a model that cannot "
        "be converted exactly is refused."
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder that save_pretrained wrote, checkpoint file of fairseq's roberta, or with --download the name of "
        "a model on the Hugging Face Hub",
    )
    add_output(parser, "new folder")
    add_vocabulary(parser)
    parser.add_argument(
        "--symbols",
        choices=("letters", "words"),
        help="how to split text into the source's tokens: letters, or words between spaces (default: by its tokenizer; "
        "letters if all tokens are single characters that it misses; without a tokenizer, also words if tokens are not "
        "parts of words)",
    )
    parser.add_argument(
        "--cased",
        action="store_true",
        help="keep capital letters: for a cased BERT whose tokenizer settings would lowercase text",
    )
    parser.add_argument(
        "--positions",
        type=int,
        metavar="N",
        help="longest sequence in tokens, if longer than the source's: its table of positions is interpolated",
    )
    parser.add_argument("--download", action="store_true", help="download SOURCE from the Hugging Face Hub")


def run(args: argparse.Namespace) -> None:
    """Import the model, and print the comparison and the options for further training."""
    from fairseq_maelm.interop.importing.importer import download, import_model

    path = download(args.source) if args.download else Path(args.source)
    name = args.source if args.download else None
    imported = import_model(path, args.output, args.vocabulary, name, args.symbols, args.cased, args.positions)
    for agreement in imported.agreements:
        sys.stdout.write(f"{agreement.describe()}\n")
    sys.stdout.write(
        f"{imported.folder}\n"
        f"model: {' '.join(imported.model_options)}\n"
        f"continued pretraining: --task maelm {' '.join(imported.task_options)}\n"
    )
    for effect in imported.effects:
        sys.stdout.write(f"if you continue its pretraining: {effect}\n")
    if not imported.reads_text:
        sys.stdout.write(
            "text: the source has no tokenizer; put it next to dict.txt, or give --symbols words if texts are split "
            "into its symbols, or train on data that was binarized with its dict.txt\n"
        )
