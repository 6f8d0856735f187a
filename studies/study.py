"""What the studies share: commands of pretrainings, and what logs say."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The package is found next to the studies if it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_maelm.architecture.config import complete_config
from fairseq_maelm.launch.command_line import words_of
from fairseq_maelm.launch.machine import Machine
from fairseq_maelm.models.flops import BatchShape, ModelShape, flops_per_token, muon_flops
from fairseq_maelm.options import USER_DIR
from fairseq_maelm.sweep.log import log_records

# The paper's optimizer; saved and validated by updates alone, for an epoch of a small text is over in seconds.
PRETRAINING: dict[str, Any] = {
    "task": "maelm", "criterion": "maelm", "optimizer": "fused_adamw", "adam-betas": "(0.9, 0.98)", "adam-eps": "1e-6",
    "weight-decay": 0.01, "clip-norm": 2.0, "seed": 1, "no-epoch-checkpoints": True, "save-interval": 1_000_000_000,
    "validate-interval": 1_000_000_000, "log-format": "json",
}  # fmt: skip


def pretraining(
    data: str | Path, save_dir: Path, options: Mapping[str, Any], updates: int, interval: int, machine: Machine,
    decays: bool = True,
) -> list[str]:  # fmt: skip
    """Return the command of a pretraining; the same again goes on from its last checkpoint.

    ``options`` are those of fairseq-train, except that "warm-up" and "hold" are shares of the updates: with "hold" the
    learning rate rises, stays and falls; without, it falls from the warm-up on, if it ``decays`` at all. Each
    ``interval`` of updates ends with a validation, which is saved. ``data`` is a folder of `maelm prepare corpus`.
    """
    options = dict(options)
    warm_up, hold = options.pop("warm-up"), options.pop("hold", None)
    if hold is not None:
        ratio = f"[{warm_up}, {hold}, {round(1 - warm_up - hold, 6)}]"
        schedule = {"lr-scheduler": "tri_stage", "phase-ratio": ratio, "init-lr-scale": 0.01, "final-lr-scale": 0.01}
    else:
        schedule = {"warmup-updates": max(1, round(warm_up * updates))}
        schedule |= (
            {"lr-scheduler": "polynomial_decay", "total-num-update": updates} if decays else {"lr-scheduler": "fixed"}
        )
    # Muon needs the shapes of the weights.
    fp16 = {"fp16-scale-window": 256, "fp16-no-flatten-grads": options.get("optimizer") == "muon"}
    own = {
        **PRETRAINING, **schedule, **options, **machine.options(), **(fp16 if machine.precision == "fp16" else {}),
        "max-update": updates, "validate-interval-updates": interval, "save-interval-updates": interval,
        "keep-interval-updates": 1, "log-interval": max(1, min(50, updates // 20)),
    }  # fmt: skip
    return ["fairseq-train", str(data), "--user-dir", str(USER_DIR), "--save-dir", str(save_dir), *words_of(own)]


def training_flops(options: Mapping[str, Any], vocabulary: int) -> float:
    """Return the FLOPs of a pretraining a token: encoder, decoder, head and optimizer.

    ``options`` are those of fairseq-train, with those of the task; ``vocabulary`` is the number of symbols.
    """
    names = {name.replace("-", "_"): value for name, value in options.items()}
    config = SimpleNamespace(**names)
    complete_config(config)
    settings = {"leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "encoder_mask_fraction": 0.0, **names}
    end = settings.get("mask_prob_end")
    settings["mask_prob"] = settings["mask_prob"] if end is None else (settings["mask_prob"] + end) / 2
    model = ModelShape.from_config(config, vocabulary)
    per_token = flops_per_token(model, BatchShape.from_config(SimpleNamespace(**settings)))
    tokens = int(options["max-tokens"]) * int(options.get("update-freq", 1))
    return per_token + (muon_flops(model) / tokens if options["optimizer"] == "muon" else 0.0)


def losses(log: Path) -> dict[int, float]:
    """Return the losses on held-out text in bits a predicted token, by the number of updates, in rising order."""
    records = (record for _, record in log_records(log, ["valid"]))
    return dict(sorted((int(record["valid_num_updates"]), record["valid_loss"]) for record in records))


def last_loss(log: Path) -> dict[str, Any]:
    """Return a pretraining's loss on held-out text in bits per predicted token, and its speed.

    A ValueError says that it was never validated, or has diverged.
    """
    records = [record for _, record in log_records(log, ["valid"])]
    if not records:
        raise ValueError("no validation in the log")
    loss = records[-1].get("valid_loss", math.nan)
    if not math.isfinite(loss):
        raise ValueError(f"diverged: the loss on held-out text is {loss}")
    speeds = sorted(record["ups"] for _, record in log_records(log, ["train_inner"]) if record.get("ups", 0.0) > 0.0)
    return {"loss": loss, "updates_per_second": speeds[len(speeds) // 2] if speeds else None}


def last_json(log: Path) -> dict[str, Any]:
    """Return the last line of JSON that a program wrote, or raise a ValueError."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError("no metrics in the log")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
