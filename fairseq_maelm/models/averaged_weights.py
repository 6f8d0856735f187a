"""The sub-command ``maelm ema``: the running average of a checkpoint's weights as a checkpoint of its own.

Training with ``--store-ema`` keeps the average beside the weights, where no command looks for it.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.checkpoint_data import read_state
from fairseq_maelm.files import atomic_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm ema``."""
    parser.description = (
        "Writes the running average of the weights, which fairseq-train --store-ema keeps in its checkpoints, as a "
        "checkpoint of its own. All commands, the hub interface and --finetune-from-model take it like any other."
    )
    parser.add_argument("checkpoint", type=Path, help="of a training with --store-ema")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the new checkpoint")


def run(args: argparse.Namespace) -> None:
    """Write the new checkpoint, and its name to standard output.

    Raises:
        OSError: the checkpoint is missing, or the output is there already.
        ValueError: the checkpoint holds no average.
    """
    if args.output.exists():
        raise FileExistsError(f"{args.output} exists already: name another file, or remove it first")
    state = averaged_state(read_state(args.checkpoint), str(args.checkpoint))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(args.output) as stream:
        torch.save(state, stream)
    sys.stdout.write(f"{args.output}\n")


def averaged_state(state: dict[str, Any], name: str) -> dict[str, Any]:
    """The content of a checkpoint with its averaged weights in the place of the weights.

    The state of the optimizer belongs to the weights and is left out: a training begins its updates anew from here.

    Args:
        state: of a checkpoint file.
        name: of that file, for messages.

    Raises:
        ValueError: it holds no average.
    """
    extra = state.get("extra_state", {})
    if "ema" not in extra:
        raise ValueError(
            f"{name} holds no average of the weights: it was not trained with --store-ema, or is an average already"
        )
    # In single precision if there is one; its integers are those that the training began with.
    precise = {key: weight for key, weight in extra.get("ema_fp32_params", {}).items() if weight.is_floating_point()}
    kept = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    return {
        **kept,
        "model": {**extra["ema"], **precise},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
    }
