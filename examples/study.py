"""What the studies share: pretraining and fine-tuning as commands, and what their logs say."""

import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The package is found next to the examples if it is not installed, and the counter of operations in the benchmarks.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from training_step.flops import BatchShape, ModelShape, flops_per_token, muon_flops

from fairseq_maelm.finetuning.encoder import read_encoder
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.config import complete_config
from fairseq_maelm.studies.log import log_records
from fairseq_maelm.train_command import USER_DIR, Machine, words_of

# The paper's optimizer; saved and validated by updates alone, for an epoch of a small text is over in seconds.
PRETRAINING: dict[str, Any] = {
    "task": "maelm", "criterion": "maelm", "optimizer": "fused_adamw", "adam-betas": "(0.9, 0.98)", "adam-eps": "1e-6",
    "weight-decay": 0.01, "clip-norm": 2.0, "seed": 1, "no-epoch-checkpoints": True, "save-interval": 1_000_000_000,
    "validate-interval": 1_000_000_000, "log-format": "json",
}  # fmt: skip
# How a task is scored -> the name in the log.
METRICS = {
    **{name: name for name in ("accuracy", "mcc", "f1", "spearman", "pearson", "exact")},
    "answer_f1": "f1",
}
SQUAD_METRICS = ("exact", "answer_f1")
DECODER_FIELDS = ("decoder_layers", "decoder_attention", "decoder_embed_dim", "decoder_ffn_embed_dim",
                  "decoder_attention_heads", "share_decoder_positions")  # fmt: skip
# How it was masked in pretraining.
MASKING_FIELDS = ("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "leave_unmasked_prob",
                  "random_token_prob", "mask_whole_words", "protect_special_tokens", "tokens_per_sample",
                  "sample_break_mode")  # fmt: skip


def pretraining(data: str | Path, save_dir: Path, own: Mapping[str, Any]) -> list[str]:
    """Return the command that pretrains; the same again goes on from its last checkpoint."""
    words = ["fairseq-train", str(data), "--user-dir", str(USER_DIR), "--save-dir", str(save_dir)]
    return [*words, *words_of({**PRETRAINING, **own})]


def fine_tuning(
    task: str | Path, checkpoint: Path, save_dir: Path, own: Mapping[str, Any], more: list[str] | None = None
) -> list[str]:
    """Return the command that fine-tunes by the task's recipe; ``more`` are options of fairseq-train."""
    words = ["maelm", "finetune", str(task), "--checkpoint", str(checkpoint), "--output", str(save_dir)]
    return [*words, *words_of(own), *(["--", *more] if more else [])]


def schedule(options: dict[str, Any], updates: int, decays: bool = True) -> dict[str, Any]:
    """Take "warm-up" and "hold", shares of the updates, out of the options; return those of the learning rate.

    With "hold" it rises, stays and falls; without, it falls from the warm-up on, or stays if it does not decay.
    """
    warm_up, hold = options.pop("warm-up"), options.pop("hold", None)
    if hold is not None:
        ratio = f"[{warm_up}, {hold}, {round(1 - warm_up - hold, 6)}]"
        return {"lr-scheduler": "tri_stage", "phase-ratio": ratio, "init-lr-scale": 0.01, "final-lr-scale": 0.01}
    own = {"warmup-updates": max(1, round(warm_up * updates))}
    decay = {"lr-scheduler": "polynomial_decay", "total-num-update": updates}
    return own | (decay if decays else {"lr-scheduler": "fixed"})


def run_options(
    options: Mapping[str, Any], updates: int, interval: int, machine: Machine, seed: int, decays: bool = True
) -> dict[str, Any]:
    """Return the options of a pretraining of so many updates, validated and saved each ``interval`` of them."""
    options = dict(options)
    return {
        **schedule(options, updates, decays), "seed": seed, **options, **machine.options(),
        **({"fp16-scale-window": 256} if machine.precision == "fp16" else {}), "max-update": updates,
        "validate-interval-updates": interval, "save-interval-updates": interval, "keep-interval-updates": 1,
        "log-interval": max(1, min(50, updates // 20)),
    }  # fmt: skip


def training_flops(options: Mapping[str, Any], vocabulary: int) -> float:
    """Return the floating-point operations of a pretraining a token: encoder, decoder, head and optimizer.

    Args:
        options: of fairseq-train, with those of the task.
        vocabulary: number of symbols.
    """
    names = {name.replace("-", "_"): value for name, value in options.items()}
    config = SimpleNamespace(**names)
    complete_config(config)
    settings = {"leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "encoder_mask_fraction": 0.0, **names}
    end = settings.get("mask_prob_end")
    settings["mask_prob"] = settings["mask_prob"] if end is None else (settings["mask_prob"] + end) / 2
    model = ModelShape.from_config(config, vocabulary)
    per_token = flops_per_token(model, BatchShape.from_config(SimpleNamespace(**settings)))
    return per_token + (muon_flops(model) / options["max-tokens"] if options["optimizer"] == "muon" else 0.0)


def losses(log: Path) -> dict[int, float]:
    """Return the losses on held-out text in bits a predicted token, by the number of updates, in rising order."""
    records = (record for _, record in log_records(log, ["valid"]))
    return dict(sorted((int(record["valid_num_updates"]), record["valid_loss"]) for record in records))


def last_loss(log: Path) -> dict[str, Any]:
    """Return the result of a pretraining: loss on held-out text in bits per predicted token, and speed.

    Raises:
        ValueError: it was never validated, or has diverged.
    """
    records = [record for _, record in log_records(log, ["valid"])]
    if not records:
        raise ValueError("no validation in the log")
    loss = records[-1].get("valid_loss", math.nan)
    if not math.isfinite(loss):
        raise ValueError(f"diverged: the loss on held-out text is {loss}")
    speeds = sorted(record["ups"] for _, record in log_records(log, ["train_inner"]) if record.get("ups", 0.0) > 0.0)
    return {"loss": loss, "updates_per_second": speeds[len(speeds) // 2] if speeds else None}


def is_squad(task: Path) -> bool:
    """Return whether a folder is one of `maelm prepare squad`."""
    return (task / "train.npz").exists()


def metrics_of(task: Path) -> tuple[str, ...]:
    """Return the metrics of a task, the usual one first: it has answers, labels that are names, or numbers."""
    if is_squad(task):
        return SQUAD_METRICS
    return ("accuracy", "mcc", "f1") if (task / "label" / "dict.txt").exists() else ("spearman", "pearson")


def logged_name(metric: str, task: Path) -> str:
    """Return the name of a metric in the log; in SQuAD 2.0 that of the best threshold, as papers report it."""
    version = json.loads((task / "valid.json").read_bytes())["version"] if is_squad(task) else ""
    return ("best_" if version == "2.0" else "") + METRICS[metric]


def last_json(log: Path) -> dict[str, Any]:
    """Return the last line of JSON that a program wrote.

    Raises:
        ValueError: there is none.
    """
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError("no metrics in the log")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@cache
def encoder_options(checkpoint: Path) -> list[str]:
    """Return the options that build the checkpoint's encoder."""
    return words_of(read_encoder(checkpoint).options)


@cache
def model_options(checkpoint: Path) -> list[str]:
    """Return the options that build the checkpoint's encoder and decoder."""
    return [*encoder_options(checkpoint), *_words(read_checkpoint(checkpoint).config.model, DECODER_FIELDS)]


@cache
def masking_options(checkpoint: Path) -> list[str]:
    """Return the options that mask as in the checkpoint's pretraining."""
    return _words(read_checkpoint(checkpoint).config.task, MASKING_FIELDS)


def _words(config: Any, fields: tuple[str, ...]) -> list[str]:
    found = {field.replace("_", "-"): getattr(config, field, None) for field in fields}
    return words_of({name: value if isinstance(value, bool) else value and str(value) for name, value in found.items()})
