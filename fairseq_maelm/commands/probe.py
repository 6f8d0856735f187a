"""The command ``maelm probe``."""

import argparse
import sys

from fairseq_maelm.analysis.analysis_settings import ProbeSettings
from fairseq_maelm.commands.analyze import add_models, named_path
from fairseq_maelm.options import UsageError, refuse_repeated, settings_of

AFTER_INTERRUPT = "the same command resumes after the last finished task"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm probe``."""
    parser.description = (
        "Fits linear probes to the frozen states of encoders in each layer: classes of texts, from the mean over "
        "tokens and from the state of the first token, and parts of speech, from each word's first subword. Writes "
        "JSON and a table. After an interruption, the same command resumes after the last finished task; models and "
        "tasks can be added later."
    )
    add_models(parser, ProbeSettings, required=False)
    parser.add_argument(
        "--random-weights", action="append", default=[], type=named_path, metavar="NAME=PATH",
        help="name and checkpoint of a model to probe with new random weights in place of the trained ones, as a "
        "baseline",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Probe the models and print the path of the table."""
    from fairseq_maelm.analysis.probes.probing import Probed, probe

    refuse_repeated([name for name, _ in (*args.checkpoint, *args.random_weights)], "model")
    models = [Probed(name, path, None) for name, path in args.checkpoint]
    models += [Probed(name, path, args.seed) for name, path in args.random_weights]
    if not models:
        raise UsageError("there is no model to probe: give --checkpoint or --random-weights")
    sys.stdout.write(f"{probe(models, settings_of(ProbeSettings, args), args.output, args.device)}\n")
