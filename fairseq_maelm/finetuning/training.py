"""The fairseq-train command of a fine-tuning run, from a recipe, a checkpoint and a task's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.encoder import Encoder
from fairseq_maelm.finetuning.recipe import Recipe
from fairseq_maelm.train_command import USER_DIR, Machine, words_of

# The paper's Table 4, and logging; a recipe can override them.
_FINE_TUNING: dict[str, Any] = {
    "optimizer": "fused_adamw",
    "adam-betas": "(0.9, 0.98)",
    "adam-eps": "1e-6",
    "weight-decay": 0.01,
    "clip-norm": 0,
    "lr-scheduler": "polynomial_decay",
    "dropout": 0.1,
    "attention-dropout": 0.1,
    "required-batch-size-multiple": 1,
    "log-interval": 100,
}
# The option that takes the encoder's sizes from --finetune-from-model.
FROM_CHECKPOINT = {"arch": "maelm"}
# Options for the length of sequences, which are limited by the encoder's positions, and for lengths within a sequence,
# which are then limited to a quarter of the positions.
_LENGTHS = ("tokens-per-sample", "max-length")
_WITHIN = ("window-overlap", "doc-stride", "max-question-length")


def run_options(
    recipe: Recipe,
    encoder: Encoder,
    setting: Mapping[str, Any],
    updates_per_epoch: int,
    sizes: Mapping[str, Any] = FROM_CHECKPOINT,
) -> dict[str, Any]:
    """Return the options of a run, except for those of its initial weights, seed, folders and machine.

    Args:
        recipe: the task's recipe.
        encoder: the checkpoint's encoder.
        setting: one value for each name in the recipe's search.
        updates_per_epoch: number of training batches.
        sizes: options that build the encoder; ``encoder.options`` for a run that does not start from the checkpoint.
    """
    rest = dict(setting)
    epochs, warm_up = int(rest.pop("epochs")), rest.pop("warm-up")
    updates = epochs * updates_per_epoch
    options = {
        **_FINE_TUNING,
        "best-checkpoint-metric": recipe.metric,
        "maximize-best-checkpoint-metric": True,
        **recipe.options,
        **sizes,
        **rest,
        "max-epoch": epochs,
        "max-update": updates,
        "total-num-update": updates,
        "warmup-updates": round(warm_up * updates),
    }
    positions = encoder.options["max-positions"]
    if any(options.get(name, 0) > positions for name in _LENGTHS):
        most = {**dict.fromkeys(_LENGTHS, positions), **dict.fromkeys(_WITHIN, positions // 4)}
        options |= {name: min(options[name], value) for name, value in most.items() if name in options}
    return options


def train_words(options: Mapping[str, Any], folder: Path, save_dir: Path, machine: Machine) -> list[str]:
    """Return the command of a run on a task's folder; the same command resumes after the last finished epoch.

    ``options`` are those of ``run_options``, and the initial weights and the seed.
    """
    saving = {"save-dir": save_dir, "no-epoch-checkpoints": True}
    return [
        *("fairseq-train", str(folder), "--user-dir", str(USER_DIR), "--log-format", "json"),
        *words_of({**options, **machine.options(), **saving}),
    ]
