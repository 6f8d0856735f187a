"""The one writer of fine-tuning commands: fairseq-train by a recipe, a checkpoint and a task's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_maelm.finetuning.encoder import Encoder
from fairseq_maelm.finetuning.recipe import Recipe
from fairseq_maelm.train_command import USER_DIR, Machine, words_of

# The paper's Table 4, and what is written to the log; a recipe may change them.
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
# The encoder of --finetune-from-model.
FROM_CHECKPOINT = {"arch": "maelm"}
# The length of sequences, which an encoder may have too few positions for, and what then shrinks with it.
_LENGTHS = ("tokens-per-sample", "max-length")
_WITHIN = ("window-overlap", "doc-stride", "max-question-length")


def run_options(
    recipe: Recipe,
    encoder: Encoder,
    setting: Mapping[str, Any],
    updates_per_epoch: int,
    sizes: Mapping[str, Any] = FROM_CHECKPOINT,
) -> dict[str, Any]:
    """Return the options of a run, apart from its start, its seed, its place and its machine.

    Args:
        recipe: of the task.
        encoder: of the checkpoint.
        setting: a value of all that the recipe searches.
        updates_per_epoch: batches of the training data.
        sizes: options that build the encoder; those of ``encoder`` for a run that does not start from the checkpoint.
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
    """Return the command of a run; given again, it goes on from the last epoch that it finished.

    Args:
        options: of ``run_options``, and where it starts.
        folder: of the task's data.
        save_dir: for checkpoints.
        machine: where it runs.
    """
    saving = {"save-dir": save_dir, "no-epoch-checkpoints": True}
    return [
        *("fairseq-train", str(folder), "--user-dir", str(USER_DIR), "--log-format", "json"),
        *words_of({**options, **machine.options(), **saving}),
    ]
