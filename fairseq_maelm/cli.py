"""The one command of this package, ``maelm``.

A sub-command is a module in ``commands/`` with ``add_arguments(parser)`` and ``run(args)``, and a row in the table
below. Only the module of the called sub-command is imported. If the module has ``PASSES_OPTIONS_ON``,
``args.fairseq_options`` contains the words after ``--``. ``AFTER_INTERRUPT``, a string or a function of the arguments
that returns a string, is printed after Ctrl-C.
"""

import argparse
import atexit
import contextlib
import importlib
import io
import keyword
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_maelm import __version__
from fairseq_maelm.files.atomic import NO_SPACE
from fairseq_maelm.launch.memory import keep_freed_memory
from fairseq_maelm.launch.screen import is_first_rank
from fairseq_maelm.options import CommandParser, UsageError
from fairseq_maelm.registration import claim_process

# Heading in the help -> sub-command (one or two words) -> summary.
GROUPS: dict[str, dict[str, str]] = {
    "Data": {
        "prepare corpus": "turn raw text into a data folder for pretraining",
        "prepare sentences": "turn tables of texts and labels into a task folder",
        "prepare glue": "turn GLUE's files into task folders",
        "prepare squad": "turn SQuAD's files into a task folder",
        "prepare tagging": "turn files of labeled words into a task folder",
    },
    "Training": {
        "pretrain": "pretrain an encoder by a recipe",
        "finetune": "fine-tune a checkpoint on a task folder",
        "sweep": "fine-tune checkpoints on a grid of settings and seeds",
        "report": "write the tables of a sweep",
        "user-dir": "print the folder to give to fairseq's commands as --user-dir",
    },
    "Prediction": {
        "fill": "propose tokens for the masks of a text",
        "score": "score sentences and minimal pairs with a masked language model",
        "predict": "predict labels, numbers, tags or answers with a checkpoint",
        "answer": "answer questions about a text file",
        "evaluate squad": "score SQuAD predictions as the official script does",
    },
    "Checkpoints": {
        "analyze": "measure effective ranks and the subspace of <mask>",
        "export": "export a checkpoint for transformers or fairseq",
        "extend": "add the words of a domain to a vocabulary",
        "import": "turn a Hugging Face or RoBERTa model into a fairseq checkpoint",
    },
}
SUB_COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

_EXAMPLES = """Try an encoder that comes with the package:
  maelm fill --checkpoint maelm-english-14m-uncased "The band released their first <mask> in 1998."

Adapt a published encoder to your text, and use it with transformers as before:
  maelm import answerdotai/ModernBERT-base --download --output base
  maelm prepare corpus text.txt --vocabulary base --output data
  maelm pretrain data --checkpoint base --output adapted
  maelm export --checkpoint adapted --output my-encoder

For the options of a command: maelm COMMAND --help."""


def module_of(command: str) -> str:
    """Return the dotted name of a sub-command's module."""
    name = command.replace(" ", "_").replace("-", "_")
    return f"fairseq_maelm.commands.{name}{'_' * keyword.iskeyword(name)}"


def make_parser() -> tuple[CommandParser, dict[str, CommandParser]]:
    """Make the parser of ``maelm``, and a dict, sub-command -> empty parser for its arguments."""
    width = max(map(len, SUB_COMMANDS))
    listed = [
        "\n".join([f"{title}:", *(f"  {name:{width}}  {summary}" for name, summary in rows.items())])
        for title, rows in GROUPS.items()
    ]
    parser = CommandParser(
        prog="maelm",
        description="Pretrain, adapt and use text encoders that never see <mask> (MAE-LM), with fairseq.",
        epilog="\n\n".join([*listed, _EXAMPLES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"maelm {__version__}")
    first = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help="one of the commands below")
    made: dict[str, CommandParser] = {}
    seconds: dict[str, argparse._SubParsersAction[CommandParser]] = {}
    for name, summary in SUB_COMMANDS.items():
        parent, _, child = name.partition(" ")
        if child and parent not in seconds:
            seconds[parent] = first.add_parser(parent).add_subparsers(dest="kind", required=True, metavar="KIND")
        made[name] = seconds[parent].add_parser(child, help=summary) if child else first.add_parser(name)
    return parser, made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``maelm`` with the given arguments, by default those of the process.

    Raises:
        SystemExit: 2 for wrong options, 1 for other failures, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser, parsers = make_parser()
    words = [word for word in given if not word.startswith("-")]
    called = next((name for name in (" ".join(words[:2]), *words[:1]) if name in parsers), None)
    if called is None:
        parser.parse_args(given)
        return
    claim_process()
    # On import this module warns about a missing package for speech.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    module = importlib.import_module(module_of(called))
    module.add_arguments(parsers[called])
    parsers[called].add_argument("--debug", action="store_true", help="show the traceback after a failure")
    own, more = given, []
    if getattr(module, "PASSES_OPTIONS_ON", False) and "--" in given:
        own, more = given[: given.index("--")], given[given.index("--") + 1 :]
    args = parser.parse_args(own)
    args.fairseq_options = more
    try:
        level = logging.INFO if is_first_rank() else logging.WARNING
        logging.basicConfig(level=level, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S", force=True)
        keep_freed_memory()
        module.run(args)
        _flush_output()
    except UsageError as error:
        parsers[called].error(_one_line(error))
    except KeyboardInterrupt:
        after = getattr(module, "AFTER_INTERRUPT", "")
        after = after(args) if callable(after) else after
        sys.stderr.write(f"\nmaelm {called}: interrupted{'; ' if after else ''}{after}\n")
        raise SystemExit(130) from None
    except Exception as error:
        if "--debug" in own:
            traceback.print_exc()
        _forget_unwritten_output()
        raise SystemExit(f"maelm {called}: error: {_message(error, getattr(args, 'output', None))}") from error


def command() -> None:
    """Run ``maelm`` as a process, and exit without running the destructors of C++ libraries.

    While torch threads are alive, these destructors abort one in four short trainings after completion.
    """
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _message(error: BaseException, output: Path | None) -> str:
    """Return an error's message in one line, preferring the first ValueError or OSError in its chain of causes."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno in NO_SPACE and each.filename is None:
            each.filename = output  # the writing library has omitted the file name
        if isinstance(each, (ValueError, OSError)):
            return _one_line(each)
    # An error in a process started by torch arrives only as traceback text, with the original cause first.
    found = re.findall(r"^(?:\w+\.)*(\w+): (.+)$", str(error), re.MULTILINE) if "Traceback" in str(error) else []
    ours = [text for name, text in found if name.endswith(("ValueError", "OSError", "FoundError", "CheckpointError"))]
    if found:
        return (ours or [": ".join(found[-1])])[0]
    return f"{type(error).__name__}: {_one_line(error)} (the option --debug shows where)"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else f"{error.strerror}"
    text = " ".join(text.split())
    return text if len(text) <= 1000 else f"{text[:997]}..."


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def _forget_unwritten_output() -> None:
    """Discard unwritten output; otherwise the interpreter would report the failed write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
