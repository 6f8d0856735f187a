"""The command ``maelm extend``."""

import argparse
import sys
from shlex import quote

from fairseq_maelm.checkpoints.locate import checkpoint_path
from fairseq_maelm.options import add_allow_unknown, add_output, existing_path, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm extend``."""
    parser.description = (
        "Adds pieces of the words of a domain's text to the vocabulary of a checkpoint: those that save most tokens, "
        "and letters that it lacks. All old tokens keep their meaning, and text without the new ones its "
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
        "--words", type=existing_path, metavar="FILE",
        help="words that become tokens first, however rare they are, one on each line; they count as --pieces, and so "
        "do the steps towards them in byte pairs and unigram models",
    )  # fmt: skip
    parser.add_argument(
        "--json-field", default="text", metavar="NAME", help="for JSON lines, the field that holds a record's text"
    )
    add_allow_unknown(parser)
    add_output(parser, "new folder")


def run(args: argparse.Namespace) -> None:
    """Extend the vocabulary, and print what it saves."""
    from fairseq_maelm.interop.extension import extend

    done = extend(args.base, args.text, args.pieces, args.output, args.json_field, args.words, args.allow_unknown)
    what, steps = "held-out words" if done.held_out else "the text's words", len(done.new) - done.used
    unknown = f" ({done.letters:,} for letters that were unknown)" if done.letters else ""
    fused = "; several unknown letters together were one token" if done.letters else ""
    example = f", such as {' '.join(done.words[:8])}" if done.words else ""
    sys.stdout.write(
        f"new tokens: {done.used:,} in use{unknown}, {steps:,} on the way to longer ones\n"
        f"words that are now one token: {len(done.words):,}{example}\n"
        f"tokens per word: {done.before:.3f} before, {done.after:.3f} after ({what}{fused})\n"
        "losses per token, as training shows them, cannot be compared with those of the old vocabulary\n"
        f"next: maelm prepare corpus {' '.join(quote(str(path)) for path in args.text)} --vocabulary "
        f"{quote(str(args.output))} --output DATA, and maelm pretrain DATA --checkpoint {quote(str(args.output))}\n"
    )
