"""Start fairseq-train for ``maelm pretrain`` and ``maelm finetune``, after checking the save folder."""

import argparse
import contextlib
import logging
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import FolderLock, set_aside
from fairseq_maelm.launch.screen import FORMAT, LOG_FILE, is_first_rank, shown
from fairseq_maelm.options import UsageError, add_replace

logger = logging.getLogger(__name__)
# fairseq's command fills a screen: it is in the log file, and shown with --verbose.
_command = logging.getLogger("fairseq_train_command")


def add_run_arguments(parser: Any) -> None:
    """Declare ``--replace`` and ``--verbose``."""
    add_replace(parser)
    parser.add_argument(
        "--verbose", action="store_true", help=f"show fairseq's whole log instead of writing it to {LOG_FILE}"
    )


def after_interrupt(args: argparse.Namespace) -> str:
    """Return a message about what the same command will do after Ctrl-C."""
    from fairseq_maelm.launch.save_folder import checkpoint_files  # imports fairseq

    if checkpoint_files(args.output, ""):
        command = "the same command without --replace" if args.replace else "the same command"
        return f"{command} resumes from the last checkpoint in {args.output}"
    return "no checkpoint has been saved, so the same command starts again"


def start_training(
    words: list[str], configuration: Any, args: argparse.Namespace, what: str, owned: Mapping[str, str]
) -> None:
    """Run fairseq-train in this process, where most of it is already imported, or print the command.

    The fairseq-train command is given as ``words`` and as the ``configuration`` that fairseq makes of it. ``args`` are
    the arguments of our command, ``what`` is a title for the log, such as "fine-tuning on FOLDER", and ``owned`` maps
    options of fairseq-train to the options of our command that decide them.
    """
    general = getattr(args, "general_data", None)
    inputs = [Path(folder).resolve() for folder in (*words[1].split(":"), *(general.split(":") if general else ()))]
    inputs += [args.checkpoint.parent.resolve()] if args.checkpoint else []
    output = args.output.resolve()
    if output in inputs:
        raise UsageError(f"--output {args.output} is the folder of the data or of --checkpoint: name another folder")
    moved = [each for each in inputs if each.is_relative_to(output)]
    if args.replace and moved:
        raise UsageError(f"--replace would rename {args.output} with {moved[0]}, which this run reads: move that first")
    if configuration.common.profile:
        raise UsageError("omit --profile: the profiler needs fairseq-train itself, whose command --dry-run prints")
    if args.dry_run:
        sys.stdout.write(f"{shlex.join(words)}\n")
        return
    if args.replace:
        _replace(args.output)
    else:
        _refuse_another_run(args.output, configuration, owned)
    limits = {name: float(configuration.optimization[name]) for name in ("max_update", "max_epoch")}
    limits = {name: limit for name, limit in limits.items() if 0 < limit < math.inf}
    with _everything_shown() if args.verbose else shown(args.output, limits):
        _command.info("%s", shlex.join(words))
        logger.info("%s: %s", what, _described(configuration, limits))
        if not args.verbose:
            logger.info("in %s: checkpoints, and %s with fairseq's command and log", args.output, LOG_FILE)
        _train(configuration)


def end_training(args: argparse.Namespace, following: Iterable[Any]) -> None:
    """Log, after training, the folder of checkpoints, if there are any, and a command of maelm that uses the model."""
    if not args.dry_run and any(args.output.glob("*.pt")):
        logger.info("checkpoints: %s; next: %s", args.output, shlex.join(["maelm", *map(str, following)]))


def _described(configuration: Any, limits: Mapping[str, float]) -> str:
    """Describe a run's limits and device."""
    gpus = configuration.distributed_training.distributed_world_size
    place = "the CPU" if configuration.common.cpu else f"{gpus} GPU{'s' if gpus > 1 else ''}"
    ends = [f"{limit:,.0f} {name.removeprefix('max_')}{'s' * (limit > 1)}" for name, limit in limits.items()]
    return f"{' or '.join(ends)} on {place}" if ends else f"without a limit on {place}"


def _train(configuration: Any) -> None:
    from fairseq.distributed import utils
    from fairseq_cli import train  # takes seconds

    # What fairseq-train does with the configuration that it makes of its options.
    utils.call_main(configuration, train.main)


@contextlib.contextmanager
def _everything_shown() -> Iterator[None]:
    # Configure logging as fairseq-train does on import; its own configuration then has no effect.
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(FORMAT)
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "INFO").upper(), handlers=[handler], force=True)
    yield


def _replace(folder: Path) -> None:
    """Rename a nonempty save folder; fail if another process uses it."""
    from fairseq_maelm.launch.save_folder import LOCK_FILE  # imports fairseq

    if is_first_rank() and folder.is_dir() and any(folder.iterdir()):
        with FolderLock(folder / LOCK_FILE, "fairseq-train", folder):
            pass
        logger.info("renamed %s to %s", folder, set_aside(folder))


def _refuse_another_run(folder: Path, configuration: Any, owned: Mapping[str, str]) -> None:
    """Raise a ValueError that lists the differences if the run in a save folder has other inputs or settings."""
    from fairseq_maelm.launch.run_record import changed_inputs, changed_options, read_record  # imports fairseq

    before = read_record(folder)
    if before is None:
        return
    otherwise = "otherwise name another --output, or give --replace to start over, which renames this folder"
    if not {"optimization", "dataset"} <= before.options.keys():
        raise ValueError(
            f"{folder} holds a checkpoint whose settings cannot be compared with the given ones, perhaps because an "
            "old fairseq wrote it: name another --output, or give --replace to rename this folder"
        )
    if changes := changed_inputs(before, configuration):
        raise ValueError(
            f"the inputs have changed since the run in {folder} began: {changes}. To resume that run, give its inputs; "
            f"{otherwise}"
        )
    if found := changed_options(before, configuration, owned):
        raise ValueError(
            f"{folder} holds a run with other settings ({found}): to resume that run, give its settings; {otherwise}"
        )
