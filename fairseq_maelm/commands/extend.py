"""The command ``maelm extend``."""

import argparse
import sys
from shlex import quote

from fairseq_maelm.checkpoints.locate import checkpoint_path
from fairseq_maelm.options import add_allow_unknown, add_output, existing_path, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm extend``."""
    parser.description = (
        "Adds the words of a domain's text to the vocabulary of a checkpoint: those that the tokenizer cuts into "
        "several tokens and that save most. All old tokens keep their meaning, and text without the new words its "
        "tokens. The result is a folder like that of `maelm import`, to be pretrained further."
    )
    parser.add_argument(
        "base", metavar="BASE", type=checkpoint_path,
        help="checkpoint with its tokenizer: a file, the folder of an import or a training run, or the name of an "
        "encoder that comes with this package",
    )  # fmt: skip
    parser.add_argument(
        "--text", nargs="+", required=True, type=existing_path, metavar="FILE",
        help="text of the domain, files or folders: plain text with a blank line between documents, or JSON lines; the "
        "words of every tenth document are only measured",
    )  # fmt: skip
    parser.add_argument(
        "--pieces", type=number(int, 1), default=2000, metavar="N",
        help="the most tokens to add; there are fewer if fewer are frequent in several documents",
    )  # fmt: skip
    parser.add_argument(
        "--json-field", default="text", metavar="NAME", help="for JSON lines, the field that holds a record's text"
    )
    add_allow_unknown(parser)
    add_output(parser, "new folder")


def run(args: argparse.Namespace) -> None:
    """Extend the vocabulary, and print what it saves."""
    from fairseq_maelm.interop.extension import extend

    done = extend(args.base, args.text, args.pieces, args.output, args.json_field, args.allow_unknown)
    what = "held-out words" if done.held_out else "the text's words"
    sys.stdout.write(
        f"new tokens: {len(done.new):,} of {args.pieces:,}, such as {' '.join(done.new[:8])}\n"
        f"tokens per word: {done.before:.3f} before, {done.after:.3f} after ({what})\n"
        f"next: maelm prepare corpus {' '.join(quote(str(path)) for path in args.text)} --vocabulary "
        f"{quote(str(args.output))} --output DATA, and maelm pretrain DATA --checkpoint {quote(str(args.output))}\n"
    )
