"""The sub-command ``maelm analyze``."""

import argparse
import re
import sys
from dataclasses import fields
from pathlib import Path

from fairseq_maelm.analysis.collect import CONDITIONS
from fairseq_maelm.analysis.run import AnalysisSettings, analyze
from fairseq_maelm.devices import add_device_argument, check_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm analyze``."""
    parser.description = (
        "Effective rank of representations layer by layer, with [MASK] in the input and without; the subspace that "
        "[MASK] takes for itself; the theorem behind MAE-LM in numbers. Writes JSON, CSV, figures and an HTML page. A "
        "run that was interrupted resumes after the last finished model, and models can be added later, when the same "
        "settings are given again."
    )
    parser.add_argument(
        "--model",
        required=True,
        action="append",
        type=_named_path,
        metavar="NAME=PATH",
        help="a checkpoint file, or the folder of a Hugging Face masked language model; once for each model",
    )
    parser.add_argument(
        "--data", type=Path, help="prepared data folder: dictionary of checkpoints, and the text unless --text is given"
    )
    parser.add_argument("--split", default="valid", help="split of --data to analyze (valid)")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="text, a paragraph a line, a blank line between documents"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder for the results")
    _add_measure_arguments(parser)
    _add_run_arguments(parser)


def _add_measure_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument("--tau", type=float, default=0.9, help="share of the energy that the rank must hold (0.9)")
    group.add_argument(
        "--centered", action="store_true", help="subtract the mean of each set of representations; the paper does not"
    )
    group.add_argument("--mask-prob", type=float, default=0.15, metavar="P", help="fraction of tokens to mask (0.15)")
    group.add_argument(
        "--leave-unmasked-prob", type=float, default=0.0, metavar="P", help="of those, left in place (0; BERT: 0.1)"
    )
    group.add_argument(
        "--random-token-prob", type=float, default=0.0, metavar="P", help="of those, replaced (0; BERT: 0.1)"
    )
    group.add_argument(
        "--conditions",
        nargs="+",
        choices=CONDITIONS,
        default=(),
        help="inputs: whole; masked, with <mask> in place; dropped, without the masked tokens (whole and masked, and "
        "for checkpoints pretrained so also dropped)",
    )
    group.add_argument(
        "--layers", type=_layers, default=None, metavar="LIST", help="such as 0,6,12; 0 is the embeddings (all)"
    )
    group.add_argument(
        "--skip-special-tokens",
        dest="skip_special",
        action="store_true",
        help="leave <s>, </s> and the like out of the representations",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is run")
    group.add_argument("--tokens", type=int, default=5_000_000, metavar="N", help="tokens to analyze (5,000,000)")
    group.add_argument(
        "--tokens-per-sample", type=int, default=512, metavar="N", help="longest sequence, cut to each model's (512)"
    )
    group.add_argument("--batch-tokens", type=int, default=16_384, metavar="N", help="tokens of a batch (16,384)")
    group.add_argument("--seed", type=int, default=1, help="of the masks and of the choice of text (1)")
    group.add_argument(
        "--double", action="store_true", help="products in double precision, for singular values below 1e-3"
    )
    add_device_argument(group)


def _named_path(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not path or not re.fullmatch(r"[\w][\w.+ -]*", name):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=PATH, with a name of letters, digits, spaces, '.', '+', '-' and '_'"
        )
    return name, Path(path)


def _layers(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'all' nor numbers with commas between them") from None


def run(args: argparse.Namespace) -> None:
    """Analyses the models and writes to standard output where the report is.

    Raises:
        ValueError: a setting, a model or the output folder is not as it must be.
    """
    check_device(args.device)
    settings = AnalysisSettings(**{field.name: getattr(args, field.name) for field in fields(AnalysisSettings)})
    names = [name for name, _ in args.model]
    if len(set(names)) < len(names):
        raise ValueError(f"every model needs a name of its own; given were {', '.join(names)}")
    report = analyze(dict(args.model), settings, args.output, args.device)
    sys.stdout.write(f"{report}\n")
