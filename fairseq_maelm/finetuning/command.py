"""The sub-command ``maelm finetune``."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.files import read_json
from fairseq_maelm.finetuning.encoder import Encoder, read_encoder
from fairseq_maelm.finetuning.recipe import Recipe, read_recipe, recipe_names
from fairseq_maelm.finetuning.rehearsal import rehearse
from fairseq_maelm.finetuning.training import FROM_CHECKPOINT, run_options, train_words
from fairseq_maelm.prepared_folder import MANIFEST_FILE
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE
from fairseq_maelm.train_command import Machine, add_machine_arguments, machine_of, run_or_show

PASSES_OPTIONS_ON = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm finetune``."""
    parser.usage = "maelm finetune TASK --checkpoint CHECKPOINT --output DIR [options] [-- FAIRSEQ OPTIONS]"
    parser.description = (
        "Fine-tunes a checkpoint on a prepared task through fairseq-train: its sizes come from the checkpoint, classes "
        "and the number of updates from the task, all else from a recipe. The same command resumes. What stands behind "
        "-- goes to fairseq-train and wins. By default one GPU is used if there is one."
    )
    parser.add_argument("task", type=Path, metavar="TASK", help="folder that one of `maelm prepare ...` wrote")
    parser.add_argument("--checkpoint", required=True, type=Path, help="of pretraining, or any other of the encoder")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="for the new checkpoints and the log")
    parser.add_argument(
        "--recipe", type=Path, help=f"a YAML file, or one of {', '.join(recipe_names())} (what fits the task)"
    )
    group = parser.add_argument_group("instead of the recipe's setting")
    group.add_argument("--lr", type=float, metavar="X", help="peak learning rate")
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the training data")
    group.add_argument("--batch-size", type=int, metavar="N", help="examples of an update, over all GPUs")
    group.add_argument("--warm-up", type=float, metavar="X", help="share of the updates in which the rate rises")
    group = parser.add_argument_group("the run")
    group.add_argument("--seed", type=int, default=1, metavar="N", help="of order, new weights and dropout (1)")
    add_machine_arguments(group)


def run(args: argparse.Namespace) -> None:
    """Fine-tunes, or writes the command.

    Raises:
        FileNotFoundError: the task or the checkpoint is missing.
        ValueError: they do not fit, or an option is not as it must be.
    """
    machine = machine_of(args, min(1, torch.cuda.device_count()))
    recipe = read_recipe(args.recipe or Path(default_recipe(args.task)))
    encoder = read_encoder(args.checkpoint)
    run_or_show(_words(args, recipe, encoder, machine), args.dry_run)


def default_recipe(folder: Path) -> str:
    """Return the name of the recipe for what a folder holds.

    Raises:
        FileNotFoundError: it is no folder of a task.
    """
    manifest: dict[str, Any] = read_json(folder / MANIFEST_FILE) if (folder / MANIFEST_FILE).is_file() else {}
    if manifest.get("task") in recipe_names():
        return str(manifest["task"])
    if (folder / "input0" / "train.idx").is_file():
        return "sentences" if (folder / "label" / DICTIONARY_FILE).is_file() else "sentences_regression"
    kind = manifest.get("kind")
    if kind == "retrieval":
        return "retrieval"
    if kind == "tagging":
        return "tagging" if manifest["tagging"]["scheme"] == "plain" else "tagging_entities"
    if kind == "squad" and "valid" in manifest["splits"]:
        return "squad" if manifest["splits"]["valid"]["version"] == "1.1" else "squad2"
    raise FileNotFoundError(
        f"{folder} is no folder to train on: make one with `maelm prepare sentences`, or with glue, tagging, squad or "
        "retrieval in place of sentences"
    )


def _words(args: argparse.Namespace, recipe: Recipe, encoder: Encoder, machine: Machine) -> list[str]:
    setting = dict(recipe.setting)
    for name in ("lr", "epochs", "batch-size", "warm-up"):
        value = getattr(args, name.replace("-", "_"))
        if value is not None:
            setting[name] = value
    size, share = int(setting.pop("batch-size")), max(1, machine.gpus)
    if size < 1 or size % share or setting["epochs"] < 1:
        raise ValueError(f"--batch-size {size} must be a multiple of --gpus {share}, and --epochs 1 or more")

    def words(updates_per_epoch: int, sizes: Mapping[str, Any] = FROM_CHECKPOINT) -> list[str]:
        options = run_options(recipe, encoder, setting, updates_per_epoch, sizes)
        start = {"batch-size": size // share, "finetune-from-model": args.checkpoint, "seed": args.seed}
        return [*train_words({**options, **start}, args.task, args.output, machine), *args.fairseq_options]

    tried = rehearse(words(1, encoder.options), [size], recipe.metric, recipe.metrics)
    if tried.vocabulary != encoder.vocabulary:
        raise ValueError(
            f"{args.task} was prepared with another vocabulary than the checkpoint {args.checkpoint} has: prepare it "
            "with the data folder that the checkpoint was pretrained on"
        )
    return words(tried.updates_per_epoch[size])
