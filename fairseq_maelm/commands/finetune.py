"""The command ``maelm finetune``."""

import argparse
import logging
from pathlib import Path
from typing import Any

from fairseq_maelm.checkpoints.locate import add_checkpoint
from fairseq_maelm.files.atomic import read_json
from fairseq_maelm.files.prepared_folder import MANIFEST_FILE
from fairseq_maelm.finetuning.doubtful_results import report_on_training
from fairseq_maelm.finetuning.kinds import kinds
from fairseq_maelm.launch.machine import add_machine_arguments, count_gpus, machine_of
from fairseq_maelm.launch.recipes import SEARCHED, FineTuningRecipe, read_recipe, recipe_names, recipe_type
from fairseq_maelm.launch.screen import is_first_rank
from fairseq_maelm.launch.training import add_run_arguments, after_interrupt, end_training, start_training
from fairseq_maelm.options import add_output, existing_path, number

logger = logging.getLogger(__name__)

PASSES_OPTIONS_ON = True
AFTER_INTERRUPT = after_interrupt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm finetune``."""
    parser.usage = "maelm finetune TASK --checkpoint PATH --output FOLDER [options] [-- FAIRSEQ OPTIONS]"
    parser.description = (
        "Fine-tunes a checkpoint on a prepared task with fairseq-train. The model's sizes come from the checkpoint, "
        "the classes and the number of updates from the task, everything else from a recipe. The same command resumes "
        "an interrupted run. Options after -- are passed to fairseq-train and override the recipe, except those that "
        "this command decides."
    )
    parser.add_argument(
        "task", type=existing_path, metavar="TASK", help="task folder written by a `maelm prepare` command"
    )
    add_checkpoint(parser, "pretrained checkpoint, or any other checkpoint with an encoder")
    add_output(parser, "folder for the new checkpoints and the log")
    parser.add_argument(
        "--recipe", type=recipe_type(FineTuningRecipe), metavar="NAME",
        help=f"a YAML file, or one of {', '.join(recipe_names(FineTuningRecipe))} (default: the recipe for the kind of "
        "task)",
    )  # fmt: skip
    _add_settings(parser)
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--seed", type=number(int, 0), default=1, metavar="N", help="random seed of data order, new weights and dropout"
    )
    add_machine_arguments(group, "1 if the machine has any")
    add_run_arguments(group)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings that override the recipe")
    for name, metavar, text in (
        ("lr", "X", "peak learning rate (default: the recipe's; without --recipe, for encoders narrower than 768, the "
         "recipe's times (768 / width)^2)"),
        ("epochs", "N", "number of passes over the training data"),
        ("batch-size", "N", "number of examples per update, over all GPUs"),
        ("warm-up", "X", "fraction of the updates for learning rate warm-up"),
    ):  # fmt: skip
        group.add_argument(f"--{name}", type=SEARCHED[name], metavar=metavar, help=text)
    group.add_argument(
        "--metric", metavar="NAME",
        help="validation metric by which the best checkpoint is kept, such as accuracy, mcc, f1 or loss (default: the "
        "recipe's)",
    )  # fmt: skip
    group.add_argument(
        "--patience", type=number(int, 1), metavar="N",
        help="stop after this many validations, one for each epoch, in which the metric has not improved",
    )  # fmt: skip
    group.add_argument(
        "--class-weights", choices=("none", "balanced"),
        help="weights of a table's examples in training: equal (default), or balanced: all classes weigh the same",
    )  # fmt: skip
    group.add_argument(
        "--pooling", choices=("first", "mean"),
        help="what the head of a table reads: the state of the first token, or the mean of all states (default: mean; "
        "first in GLUE's recipes, and in transformers' classes other than ModernBERT's)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Fine-tune, or print the fairseq-train command.

    Raises:
        FileNotFoundError: the task is not a prepared folder.
        ValueError: the task, the checkpoint and the recipe do not fit together.
    """
    from fairseq_maelm.launch.finetuning import RUN_OWNED, run_command  # imports torch and fairseq
    from fairseq_maelm.launch.save_folder import link_equal_checkpoints

    machine = machine_of(count_gpus(args.gpus, 1, args.dry_run), args.precision)
    recipe = read_recipe(args.recipe or Path(default_recipe(args.task)), FineTuningRecipe)
    words, configuration = run_command(args, recipe, machine)
    if is_first_rank():
        _say_what_it_exports_to(args, configuration.task)
    start_training(words, configuration, args, f"fine-tuning on {args.task}", RUN_OWNED)
    if is_first_rank() and not args.dry_run:
        link_equal_checkpoints(args.output)
        report_on_training(args.output, args.task)
    end_training(args, ["predict", "FILE", "--checkpoint", args.output])


def _say_what_it_exports_to(args: argparse.Namespace, task: Any) -> None:
    """Log what `maelm export` can make of the run, before hours are spent on it."""
    from fairseq_maelm.interop.export.target import target_after_training  # imports torch and fairseq

    try:
        target = target_after_training(args.checkpoint, task, args.task, args.output)
        if target is not None:
            logger.info("`maelm export` will write %s", target.description)
    except ValueError as error:
        logger.warning("after this fine-tuning, %s", error)


def default_recipe(folder: Path) -> str:
    """Return the name of the recipe for a prepared folder; raise a FileNotFoundError for any other folder."""
    manifest: dict[str, Any] = read_json(folder / MANIFEST_FILE) if (folder / MANIFEST_FILE).is_file() else {}
    for kind in kinds().values():
        if recipe := kind.recipe(folder, manifest):
            return recipe
    if "valid" not in manifest.get("splits", {"valid"}):
        raise ValueError(f"{folder} was prepared without --valid, by which training chooses a checkpoint: add it")
    raise FileNotFoundError(
        f"{folder} is not a task folder: make one with `maelm prepare sentences`, `glue`, `squad` or `tagging`"
    )
