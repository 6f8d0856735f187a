"""The command ``maelm analyze``."""

import argparse
import re
import sys
from pathlib import Path

from fairseq_maelm.analysis.analysis_settings import AnalysisSettings
from fairseq_maelm.checkpoints.locate import checkpoint_path
from fairseq_maelm.options import add_device, add_output, add_settings, refuse_repeated, settings_of

AFTER_INTERRUPT = "the same command resumes after the last finished model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm analyze``."""
    parser.description = (
        "Measures, in each layer, the effective rank of representations with and without [MASK] in the input and the "
        "subspace of <mask>, and checks the inequality behind MAE-LM. Writes JSON, CSV and figures. After an "
        "interruption, the same command resumes after the last finished model; models can be added later."
    )
    parser.add_argument(
        "--checkpoint", required=True, action="append", type=_named_path, metavar="NAME=PATH",
        help="name and checkpoint of a model (repeat the option for further models): a file, the folder of a training "
        "run (its best checkpoint, or else its last), or the name of an encoder that comes with this package; import "
        "a Hugging Face model with `maelm import` first",
    )  # fmt: skip
    add_output(parser, "folder for the results")
    add_settings(parser, AnalysisSettings)
    add_device(parser)


def _named_path(text: str) -> tuple[str, Path]:
    """Convert NAME=PATH to a name and a checkpoint file."""
    name, _, path = text.partition("=")
    if not path or not re.fullmatch(r"[\w][\w.+ -]*", name):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be NAME=PATH, with a NAME of letters, digits, spaces, '.', '+', '-' and '_'"
        )
    return name, checkpoint_path(path)


def run(args: argparse.Namespace) -> None:
    """Analyze the models and print the path of the results folder."""
    from fairseq_maelm.analysis.measurements import analyze

    refuse_repeated([name for name, _ in args.checkpoint], "model")
    analyze(dict(args.checkpoint), settings_of(AnalysisSettings, args), args.output, args.device)
    sys.stdout.write(f"{args.output}\n")
