"""The one command of this package, ``maelm``.

A sub-command is a module with ``add_arguments(parser)`` and ``run(args)`` and one row of the table below. Only the
module of the sub-command that is called gets imported.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

SUB_COMMANDS = {
    "analyze": ("fairseq_maelm.analysis.command", "measure representations: effective rank, subspace of [MASK]"),
    "prepare": ("fairseq_maelm.corpus.command", "turn raw text into a data folder for fairseq-train"),
    "prepare-few-shot": ("fairseq_maelm.prompting.few_shot_command", "make the few-shot splits of Gao et al. (2021)"),
    "prompt": ("fairseq_maelm.prompting.command", "classify by the words at a template's mask"),
    "user-dir": ("fairseq_maelm.user_dir", "print the folder to give to fairseq as --user-dir"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``maelm`` with the given arguments, by default the process's own.

    Raises:
        SystemExit: 1 with a message for anything that the user can put right, 2 for wrong usage, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="maelm", description="MAE-LM with fairseq: all that stands around the training."
    )
    sub_parsers = parser.add_subparsers(dest="sub_command", required=True, metavar="COMMAND")
    for name, (_, summary) in SUB_COMMANDS.items():
        sub_parsers.add_parser(name, help=summary)
    called = next((argument for argument in given if not argument.startswith("-")), None)
    if called not in SUB_COMMANDS:
        parser.parse_args(given)
        return
    module = importlib.import_module(SUB_COMMANDS[called][0])
    module.add_arguments(sub_parsers.choices[called])
    args = parser.parse_args(given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S", force=True)
    try:
        module.run(args)
    except (ValueError, OSError) as error:
        raise SystemExit(f"maelm {called}: error: {error}") from error
    except KeyboardInterrupt:
        sys.stderr.write(f"\nmaelm {called}: interrupted; the same command resumes\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
