"""Start fairseq-train for ``maelm pretrain`` and ``maelm finetune``, after checking the save folder."""

import argparse
import contextlib
import logging
import math
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.files.atomic import FolderLock, set_aside
from fairseq_maelm.launch.command_line import configuration_of, overridden, repeated_option
from fairseq_maelm.launch.screen import FORMAT, LOG_FILE, is_first_rank, shown
from fairseq_maelm.options import UsageError, add_replace

logger = logging.getLogger(__name__)
# fairseq's command fills a screen: it is in the log file, and shown with --verbose.
_command = logging.getLogger("fairseq_train_command")

# The sections of fairseq's configuration, and options of other sections, that determine the result of a run.
_SECTIONS = ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "ema")
_OTHERS = {
    "common": ("seed", "fp16"),
    "checkpoint": ("finetune_from_model", "best_checkpoint_metric"),
    "dataset": ("train_subset", "valid_subset"),
}
# Options that may change when a run resumes: limits, and options of the hardware. Only total batch sizes are compared.
_FREE = {"max_update", "max_epoch", "stop_time_hours", "stop_min_lr", "update_freq"}
_FREE |= {"attention", "compile", "checkpoint_activations"}
# Maximum number of differences that a message lists; the rest are counted.
_SHOWN = 6


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


def start_training(words: list[str], args: argparse.Namespace, what: str, owned: Mapping[str, str]) -> None:
    """Run fairseq-train in this process, where most of it is already imported, or print the command.

    Args:
        words: the fairseq-train command as a list of words, which ends with those after ``--``.
        args: the arguments of ``maelm pretrain`` or ``maelm finetune``.
        what: a title for the log, such as "fine-tuning on FOLDER".
        owned: option of fairseq-train -> option of the command that decides it.

    Raises:
        ValueError: fairseq-train does not accept the options, or the save folder holds a run with other inputs or
            settings.
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
    if problem := repeated_option(args.fairseq_options):
        raise UsageError(f"after --, {problem}")
    configuration = configuration_of(words[1:])
    own = configuration_of(words[1 : -len(args.fairseq_options)]) if args.fairseq_options else configuration
    if name := overridden(own, configuration, owned):
        raise UsageError(f"give {owned[name]} instead of --{name} after --: the command itself uses this setting")
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
    from fairseq_maelm.launch.start import LOCK_FILE  # imports fairseq

    if is_first_rank() and folder.is_dir() and any(folder.iterdir()):
        with FolderLock(folder / LOCK_FILE, "fairseq-train", folder):
            pass
        logger.info("renamed %s to %s", folder, set_aside(folder))


def _refuse_another_run(folder: Path, configuration: Any, owned: Mapping[str, str]) -> None:
    """Raise a ValueError that lists the differences if the run in a save folder has other inputs or settings."""
    from omegaconf import OmegaConf

    from fairseq_maelm.launch.recorded_inputs import changed_inputs, recorded_inputs
    from fairseq_maelm.launch.save_folder import read_run

    run = read_run(folder)
    if run is None:
        return
    before, inputs = run[0], recorded_inputs(run[1])
    otherwise = "otherwise name another --output, or give --replace to start over, which renames this folder"
    if changes := changed_inputs(inputs, configuration):
        raise ValueError(
            f"the inputs have changed since the run in {folder} began: {changes}. To resume that run, give its inputs; "
            f"{otherwise}"
        )
    if not {"optimization", "dataset"} <= before.keys():
        raise ValueError(
            f"{folder} holds a checkpoint whose settings cannot be compared with the given ones, perhaps because an "
            "old fairseq wrote it: name another --output, or give --replace to rename this folder"
        )
    now: Any = OmegaConf.to_container(configuration, resolve=True, enum_to_str=True)
    # Inputs that were compared may be elsewhere now.
    elsewhere = {option for option, each in inputs.items() if all(each)}
    found = different_settings(before, now, owned, elsewhere)
    if found:
        more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise ValueError(
            f"{folder} holds a run with other settings ({', '.join([*found[:_SHOWN], *more])}): to resume that run, "
            f"give its settings; {otherwise}"
        )


def different_settings(
    before: Mapping[str, Any], now: Mapping[str, Any], owned: Mapping[str, str], ignored: Collection[str] = ()
) -> list[str]:
    """Describe the settings of a run that differ from those in a checkpoint, as ``lr 0.001 (now 0.002)``.

    Args:
        before: the configuration in the checkpoint, section -> option -> value. ``task.given`` has the original
            values of options that the task has changed.
        now: fairseq's configuration of the run.
        owned: option of fairseq-train -> option of the command that decides it.
        ignored: options of fairseq-train that may differ.
    """
    from fairseq_maelm.launch.last_update import depends_on_last_update  # imports fairseq

    free = _FREE - {"max_update"} if depends_on_last_update(now, before) else _FREE
    old, new = _settings(before, free), _settings(now, free)
    differ = {name: (old[name], new[name]) for name in new if name in old and old[name] != new[name]}
    differ = {name: values for name, values in differ.items() if name[1] not in ignored}
    if ("task", "data") in differ and not any(map(os.path.exists, differ["task", "data"][0].split(":"))):
        del differ["task", "data"]  # moved
    if ("lr_scheduler", "total_num_update") in differ:
        differ.pop(("lr_scheduler", "warmup_updates"), None)  # a fraction of it
    described, derived = dict[str, str](), dict[str, str]()
    for (section, option), values in differ.items():
        name = section if option == "_name" else option.replace("_", "-")
        own = owned.get(name, name)
        decides = next((first for first, other in owned.items() if other == own), name).replace("-", "_")
        text = "{} (now {})".format(*map(_value, values))
        if decides in (option, name):
            described[own] = f"{own} {text}"
        elif (old_value := _value_of(before, decides)) != (new_value := _value_of(now, decides)):
            described[own] = f"{own} {_value(old_value)} (now {_value(new_value)})"
        else:
            derived[name] = f"{name} {text}"
    return list((described or derived).values())


def _value_of(configuration: Mapping[str, Any], name: str) -> Any:
    """Return the value of an option in the first section that has it."""
    sections = (section for section in configuration.values() if isinstance(section, Mapping))
    return next((section[name] for section in sections if name in section), None)


def _settings(configuration: Mapping[str, Any], free: Collection[str]) -> dict[tuple[str, str], Any]:
    """Return the settings that determine a run's result, except for the free ones: (section, option) -> value."""
    from fairseq_maelm.architecture.config import complete_config  # imports torch

    sections = {name: dict(content) for name, content in configuration.items() if isinstance(content, dict)}
    # Fill in sizes that were not given, as the model does.
    model = argparse.Namespace(**sections.get("model", {}))
    complete_config(model)
    sections["model"] = vars(model)
    task = sections.setdefault("task", {})
    task.update(task.pop("given", None) or {})
    for interpolated in ("finetune_from_model", "save_dir"):  # fairseq's section "checkpoint" has them
        task.pop(interpolated, None)
    chosen = {(name, option): value for name in _SECTIONS for option, value in sections.get(name, {}).items()}
    chosen |= {(name, option): sections[name].get(option) for name in sections for option in _OTHERS.get(name, ())}
    gpus = sections.get("distributed_training", {}).get("distributed_world_size", 1)
    steps = gpus * sections["optimization"]["update_freq"][-1]
    for option, size in (("batch_size", "batch_size"), ("max_tokens", "batch of tokens")):
        share = sections["dataset"].get(option)
        chosen["dataset", size] = None if share is None else share * steps
    for name in (("task", "data"), ("task", "general_data"), ("checkpoint", "finetune_from_model")):
        if chosen.get(name):
            chosen[name] = ":".join(map(os.path.realpath, chosen[name].split(":")))
    return {name: value for name, value in chosen.items() if name[1] not in free}


def _value(value: Any) -> Any:
    single = value[0] if isinstance(value, list) and len(value) == 1 else value
    return f"{single:g}" if isinstance(single, float) else single
