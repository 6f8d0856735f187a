"""The command ``maelm pretrain``."""

import argparse
import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint
from fairseq_maelm.data.token_files import read_index
from fairseq_maelm.launch.command_line import configuration_of, fairseq_train, parsed_command
from fairseq_maelm.launch.machine import add_machine_arguments, count_gpus, machine_of, memory_of_gpus
from fairseq_maelm.launch.pretraining import (
    OBJECTIVES,
    OWNED,
    changed,
    choose_recipe,
    parse_change,
    settings_within,
    train_options,
    update_flops,
)
from fairseq_maelm.launch.recipes import SIZES, PretrainingRecipe, recipe_names, recipe_type
from fairseq_maelm.launch.training import add_run_arguments, after_interrupt, end_training, start_training
from fairseq_maelm.options import UsageError, add_output, by_name, number

logger = logging.getLogger(__name__)

PASSES_OPTIONS_ON = True
AFTER_INTERRUPT = after_interrupt
_MANY = 10**6  # updates of the command whose FLOPs are counted: enough for every phase of a schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm pretrain``."""
    parser.usage = (
        "maelm pretrain DATA --output FOLDER (--recipe NAME | --checkpoint PATH) [options] [-- FAIRSEQ OPTIONS]"
    )
    parser.description = (
        "Pretrains with fairseq-train by a recipe. The batch size is the same for any number of GPUs. The same "
        "command resumes an interrupted run. Options after -- are passed to fairseq-train and override the recipe, "
        "except those that this command decides. By "
        "default all GPUs of the machine are used; under torchrun or SLURM, --gpus counts the GPUs of all machines."
    )
    parser.add_argument(
        "data", metavar="DATA", help="folder written by `maelm prepare corpus`, or its shards separated by colons"
    )
    add_output(parser, "folder for the checkpoints")
    parser.add_argument("--arch", metavar="NAME", help="architecture (default: the recipe's)")
    parser.add_argument(
        "--recipe", type=recipe_type(PretrainingRecipe), metavar="NAME",
        help=f"a YAML file, or one of {', '.join(recipe_names(PretrainingRecipe))} (default: the recipe of --arch, or "
        "'adapt' with --checkpoint)",
    )  # fmt: skip
    add_checkpoint(parser, "encoder or pretrained model to continue from", required=False)
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default=OBJECTIVES[0],
        help="with --checkpoint: train by MAE-LM (mae-lm) or by BERT's masked language modeling (mlm, 80/10/10), "
        "which is only for encoders without a decoder",
    )  # fmt: skip
    parser.add_argument(
        "--general-data", metavar="DATA",
        help="with --checkpoint: folder of general text, prepared with the same vocabulary, to mix into the training; "
        "training stops if the loss on its valid split rises too far",
    )  # fmt: skip
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help=f"changes to the recipe: {', '.join(SIZES)}, passes, or any option of fairseq-train, such as lr=1e-3; "
        "NAME=true passes the option as a flag, NAME=none omits it",
    )  # fmt: skip
    parser.add_argument(
        "--flops", type=number(float, above=0, below=math.inf), metavar="N",
        help="train for at most N FLOPs, such as 1e16, instead of the recipe's number of updates; a shorter run has a "
        "shorter warm-up",
    )  # fmt: skip
    add_machine_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Pretrain, or print the fairseq-train command."""
    folders = [Path(folder) for folder in args.data.split(":")]
    if not (folders[0] / "dict.txt").is_file():
        if shards := sorted(path.parent for path in folders[0].glob("*/dict.txt")):
            raise UsageError(f"{folders[0]} is a folder of shards: give {':'.join(map(str, shards))} as DATA")
        if not folders[0].exists():
            raise FileNotFoundError(f"there is no folder {folders[0]}: DATA must be one of `maelm prepare corpus`")
        raise FileNotFoundError(
            f"there is no dict.txt in {folders[0]}: DATA must be the folder of `maelm prepare corpus`"
        )
    for index in (path for folder in folders for path in folder.glob("*.idx") if path.with_suffix(".bin").is_file()):
        read_index(str(index.with_suffix("")))
    changes = by_name(map(parse_change, args.set), "--set")
    recipe = choose_recipe(args, changes)  # refuses wrong options before a checkpoint is read
    checkpoint = None if args.checkpoint is None else _source(args.checkpoint)
    if args.flops is not None:
        found = _within_budget(args, folders, recipe, changes, checkpoint)
        recipe, changes = changed(recipe, found), {**changes, **found}
    options, words = _command(args, folders, recipe, changes, checkpoint)
    configuration = parsed_command(words, args.fairseq_options, OWNED)
    after = ["fill", "--checkpoint", args.output, "A text with a <mask>."]
    what = f"pretraining {options['arch']}"
    if args.checkpoint is not None:
        what, after = "further pretraining", ["export", "--checkpoint", args.output, "--output", "FOLDER"]
    start_training([*words, *args.fairseq_options], configuration, args, f"{what} on {args.data}", OWNED)
    end_training(args, after)


def _source(path: Path) -> Any:
    """Read the checkpoint to continue from, and warn of what further training costs it."""
    from fairseq_maelm.checkpoints.reader import describe_checkpoint  # these import torch and fairseq
    from fairseq_maelm.launch.continued import effects_of_pretraining

    checkpoint = describe_checkpoint(path)
    for effect in effects_of_pretraining(checkpoint):
        logger.warning("%s", effect)
    return checkpoint


def _command(
    args: argparse.Namespace, folders: list[Path], recipe: PretrainingRecipe, given: Collection[str], checkpoint: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the options of fairseq-train and the command, without the words after ``--``."""
    if checkpoint is not None:
        from fairseq_maelm.launch.continued import continue_from  # imports torch and fairseq

        recipe = continue_from(recipe, given, checkpoint, folders, args.objective, args.general_data)
    machine = machine_of(count_gpus(args.gpus, None, args.dry_run), args.precision)
    options = train_options(recipe, machine, memory_of_gpus())
    return options, fairseq_train(args.data, args.output, options)


def _within_budget(
    args: argparse.Namespace, folders: list[Path], recipe: PretrainingRecipe, given: dict[str, Any], checkpoint: Any
) -> dict[str, int]:
    """Return the settings of a run of --flops."""
    from fairseq_maelm.text.dictionary import load_dictionary  # imports torch and fairseq

    if chosen := {"max-update", "passes"} & given.keys():
        raise UsageError(f"--flops decides the number of updates: omit --set {chosen.pop()}")
    # FLOPs of an update are those of the model that fairseq configures, whatever the number of updates.
    any_number = {"max-update": _MANY}
    _, words = _command(args, folders, changed(recipe, any_number), {**given, **any_number}, checkpoint)
    configuration = configuration_of([*words[1:], *args.fairseq_options])
    each = update_flops(configuration, len(load_dictionary(str(folders[0]))), checkpoint)
    return settings_within(args.flops, each, recipe.options, given)
