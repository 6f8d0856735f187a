"""Pretraining continued from a checkpoint: on the domain's text, and on general text for comparison."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from steps import once, run

ROOT = Path(__file__).resolve().parents[2]
# Sizes of checkpoints are read as by the recipes of fine-tuning.
sys.path.insert(0, str(ROOT / "examples" / "finetuning"))

from task_options import encoder_options  # noqa: E402

from fairseq_maelm.models.checkpoint_reader import read_checkpoint  # noqa: E402

# What a checkpoint is besides its encoder, and how it was trained: adaptation goes on in the same way.
MODEL_FIELDS = ("decoder_layers", "decoder_attention", "decoder_embed_dim", "decoder_ffn_embed_dim",
                "decoder_attention_heads", "share_decoder_positions")  # fmt: skip
TASK_FIELDS = ("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "leave_unmasked_prob",
               "random_token_prob", "mask_whole_words", "protect_special_tokens", "tokens_per_sample",
               "sample_break_mode")  # fmt: skip


def training_options(checkpoint: Path) -> list[str]:
    """The options that build the checkpoint's model and mask as in its pretraining."""
    config = read_checkpoint(checkpoint).config
    options = encoder_options(checkpoint)
    for part, fields in ((config.model, MODEL_FIELDS), (config.task, TASK_FIELDS)):
        for field in fields:
            value = getattr(part, field, None)
            flag = "--" + field.replace("_", "-")
            options += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
    return options


def _pretraining(args: Namespace, task: str, text: Path, checkpoint: Path, save_dir: Path, updates: int) -> list[Any]:
    """The command that goes on from a checkpoint; what differs between the domain and the control is added to it."""
    return [
        *["fairseq-train", text, "--user-dir", ROOT / "fairseq_maelm", "--task", task, "--criterion", "maelm"],
        *["--save-dir", save_dir, "--finetune-from-model", checkpoint, *training_options(checkpoint)],
        *["--validate-interval-updates", args.interval, "--save-interval-updates", args.interval],
        *["--keep-interval-updates", 1, "--no-epoch-checkpoints", "--max-update", updates],
        *["--total-num-update", args.updates, "--warmup-updates", args.updates // 10, "--lr", args.learning_rate],
        *["--lr-scheduler", "polynomial_decay", "--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)"],
        *["--adam-eps", "1e-6", "--weight-decay", 0.01, "--clip-norm", 2.0, "--batch-size", args.batch_size],
        *["--log-format", "json", "--log-interval", 20, "--num-workers", 0, *args.train_options.split()],
    ]


def adapt(args: Namespace, domain: Path, data: Path, checkpoint: Path) -> Path:
    """Continue pretraining; returns the checkpoint of the lowest domain loss within the bound."""
    save_dir = args.output / "adapted"
    done = args.output / "adapted.done"

    def work() -> None:
        command = [
            *_pretraining(args, "maelm_adaptation", domain, checkpoint, save_dir, args.updates),
            *["--general-data", data, "--general-ratio", args.general_ratio, "--valid-subset", "valid,general"],
            *["--general-loss-bound", args.general_loss_bound, "--patience", args.patience],
        ]
        run(command, args.output / "logs" / "adaptation.log")
        if not (save_dir / "checkpoint_best.pt").exists():
            raise ValueError("the general loss was above its bound before anything could be saved: see adaptation.log")
        done.touch()

    once(done, "continuing pretraining", work)
    return save_dir / "checkpoint_best.pt"


def go_on_with_general_text(args: Namespace, adapted: Path) -> Path:
    """Continue pretraining on general text alone, for as many updates as the adapted checkpoint has; returns the last.

    What it gains on the tasks is what more training gains, whatever the text.
    """
    save_dir = args.output / "control"
    done = args.output / "control.done"

    def work() -> None:
        updates = read_checkpoint(adapted).state["optimizer_history"][-1]["num_updates"]
        command = _pretraining(args, "maelm", args.data, args.checkpoint, save_dir, updates)
        run(command, args.output / "logs" / "control.log")
        done.touch()

    once(done, "continuing with general text", work)
    return save_dir / "checkpoint_last.pt"
