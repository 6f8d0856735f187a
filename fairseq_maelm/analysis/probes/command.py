"""The sub-command ``maelm probe``."""

import argparse
import sys

from fairseq_maelm.analysis.command import check_names, named_path
from fairseq_maelm.analysis.probes.inputs import ProbeSettings
from fairseq_maelm.analysis.probes.run import Probed, probe
from fairseq_maelm.arguments import UsageError, add_device, add_output, add_settings, settings_of

AFTER_INTERRUPT = "the same command resumes after the last finished task"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm probe``."""
    parser.description = (
        "Measures what the frozen states of encoders know, layer by layer, mean and first token, with and without "
        "whitening: similarity of sentences and words without training, nearest neighbors and linear probes, effective "
        "rank, repeated words. Writes JSON, a table and a figure. A run that was interrupted resumes after the last "
        "finished task, and models and tasks can be added later."
    )
    parser.add_argument(
        "--checkpoint", action="append", default=[], type=named_path, metavar="NAME=PATH",
        help="name and checkpoint, once for each model: a file, the folder of a training run (its best checkpoint, or "
        "else its last), or the folder of a Hugging Face masked language model",
    )  # fmt: skip
    parser.add_argument(
        "--random-weights", action="append", default=[], type=named_path, metavar="NAME=PATH",
        help="name and checkpoint of a model to probe with random weights, as before its pretraining",
    )  # fmt: skip
    add_output(parser, "folder for the results")
    add_settings(parser, ProbeSettings)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Probe the models and write to standard output where the table is.

    Raises:
        ValueError: a setting, an input, a model or the output folder is not as it must be.
        OSError: a file cannot be read.
    """
    check_names([*args.checkpoint, *args.random_weights])
    models = [Probed(name, path, None) for name, path in args.checkpoint]
    models += [Probed(name, path, args.seed) for name, path in args.random_weights]
    if not models:
        raise UsageError("nothing to probe: give --checkpoint or --random-weights")
    sys.stdout.write(f"{probe(models, settings_of(ProbeSettings, args), args.output, args.device)}\n")
