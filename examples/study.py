"""What the studies share: pretrainings as options, and what logs say."""

import json
import math
import sys
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The package is found next to the examples if it is not installed, and the counter of operations in the benchmarks.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from training_step.flops import BatchShape, ModelShape, flops_per_token, muon_flops

from fairseq_maelm.finetuning.train_command import read_encoder
from fairseq_maelm.models.checkpoint_reader import read_checkpoint
from fairseq_maelm.models.config import complete_config
from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.sweep.log import best_validation, log_records
from fairseq_maelm.training.options import USER_DIR, Machine, words_of

# The paper's optimizer; saved and validated by updates alone, for an epoch of a small text is over in seconds.
PRETRAINING: dict[str, Any] = {
    "task": "maelm", "criterion": "maelm", "optimizer": "fused_adamw", "adam-betas": "(0.9, 0.98)", "adam-eps": "1e-6",
    "weight-decay": 0.01, "clip-norm": 2.0, "seed": 1, "no-epoch-checkpoints": True, "save-interval": 1_000_000_000,
    "validate-interval": 1_000_000_000, "log-format": "json",
}  # fmt: skip
DECODER_FIELDS = ("decoder_layers", "decoder_attention", "decoder_embed_dim", "decoder_ffn_embed_dim",
                  "decoder_attention_heads", "share_decoder_positions")  # fmt: skip
# How it was masked in pretraining.
MASKING_FIELDS = ("masked_input", "encoder_mask_fraction", "encoder_positions", "mask_prob", "leave_unmasked_prob",
                  "random_token_prob", "mask_whole_words", "protect_special_tokens", "tokens_per_sample",
                  "sample_break_mode")  # fmt: skip
# Head sizes are multiples of this: the fast attention kernels of GPUs want it.
_HEAD_SIZE_MULTIPLE = 8


# Options of pretrainings


def row_options(plan: Mapping[str, Any], row: str, objective: str = "") -> dict[str, Any]:
    """Return the options of a plan's row: the common ones, those of its parts, its own, those of an objective."""
    own, options = plan["rows"][row], dict(plan["common"])
    for part in own.get("parts", []):
        options |= plan["parts"][part]
    options |= {**own.get("options", {}), **scaled_decoder(own, {**options, **own.get("options", {})})}
    return {**options, **plan.get("objective-options", {}).get(objective, {})}


def same_rows(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows that are run only if they are named, and the earlier one that computes the same, if any."""
    first: dict[str, str] = {}
    keys = {
        name: str([row_options(plan, name), row.get("first"), row.get("objectives")])
        for name, row in plan["rows"].items()
    }
    found = {name: first.setdefault(key, name) for name, key in keys.items()}
    declared = {name: row["same-as"] for name, row in plan["rows"].items() if "same-as" in row}
    return {name: earlier for name, earlier in found.items() if earlier != name} | declared


def scaled_decoder(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a decoder that a row gives as fractions of the encoder: "decoder-depth", "decoder-width".

    A depth has one layer at least; one that is the size's own adds no option. Of a width the heads are scaled first, at
    least one; the width is the multiple of 8 x heads that is nearest to the fraction of the encoder's, so that heads
    divide it; the feed-forward width keeps its ratio to the width. With 768 and 12 heads 2/3 is 512 with 8 heads.
    """
    size = {name.replace("_", "-"): value for name, value in SIZES[options["arch"]].items()} | dict(options)
    found = {}
    if "decoder-depth" in row:
        layers = max(1, round(Fraction(row["decoder-depth"]) * size["encoder-layers"]))
        found = {} if layers == size["decoder-layers"] else {"decoder-layers": layers}
    if "decoder-width" in row:
        fraction, width = Fraction(row["decoder-width"]), size["encoder-embed-dim"]
        heads = max(1, round(fraction * size["encoder-attention-heads"]))
        unit = _HEAD_SIZE_MULTIPLE * heads
        own = unit * max(1, round(fraction * width / unit))
        feed_forward = round(Fraction(own * size["encoder-ffn-embed-dim"], width))
        found |= {"decoder-embed-dim": own, "decoder-ffn-embed-dim": feed_forward, "decoder-attention-heads": heads}
    return found


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
    # Muon needs the shapes of the weights.
    fp16 = {"fp16-scale-window": 256, "fp16-no-flatten-grads": options.get("optimizer") == "muon"}
    return {
        **schedule(options, updates, decays), "seed": seed, **options, **machine.options(),
        **(fp16 if machine.precision == "fp16" else {}), "max-update": updates,
        "validate-interval-updates": interval, "save-interval-updates": interval, "keep-interval-updates": 1,
        "log-interval": max(1, min(50, updates // 20)),
    }  # fmt: skip


def pretraining(data: str | Path, save_dir: Path, own: Mapping[str, Any]) -> list[str]:
    """Return the command that pretrains; the same again goes on from its last checkpoint."""
    words = ["fairseq-train", str(data), "--user-dir", str(USER_DIR), "--save-dir", str(save_dir)]
    return [*words, *words_of({**PRETRAINING, **own})]


def updates_of(plan: Mapping[str, Any], options: Mapping[str, Any], share: float = 1.0) -> int:
    """Return the updates of a share of a pretraining: as many for all rows, or those of equally many tokens."""
    if "updates" in plan:
        return round(share * plan["updates"])
    return math.ceil(round(share * plan["tokens"]) / tokens_of_update(options))


def tokens_of_update(options: Mapping[str, Any]) -> int:
    """Return the tokens of an update of a row; its "update-freq" counts the passes over all GPUs."""
    return int(options["max-tokens"]) * int(options.get("update-freq", 1))


def _row_words(places: Any, is_first: bool = False) -> list[str]:
    """Return the options of a row's pretraining, or of its first part, which has a share of the text."""
    plan, row, machine = places["plan"], places["row"], places["machine-of-a-run"]
    options, share, first = row_options(plan, row, places.get("objective", "")), 1.0, places.get("first")
    if first:
        share = first["share"] if is_first else 1 - first["share"]
        options |= first["options"] if is_first else {}
    passes, gpus = options.get("update-freq", 1), max(1, machine.gpus)
    if passes % gpus:
        raise ValueError(f"update-freq {passes} must be a multiple of the {gpus} GPUs of a process")
    interval = max(1, round(updates_of(plan, options) / plan["validations"]))
    updates = updates_of(plan, options, share)
    if "update-freq" in options:
        options["update-freq"] = passes // gpus
    own = run_options(options, updates, interval, machine, int(places.get("seed", 1)), decays=not is_first)
    return ["--user-dir", str(USER_DIR), *words_of({**PRETRAINING, **own})]


# Computed places of every plan: options of pretrainings, and those that build and mask as a checkpoint's did.
PLACES = {
    "user-dir": lambda places: ["--user-dir", str(USER_DIR)],
    "pretraining": lambda places: ["--user-dir", str(USER_DIR), *words_of(PRETRAINING)],
    "row-options": _row_words,
    "first-options": lambda places: _row_words(places, is_first=True),
    "encoder": lambda places: encoder_options(places["checkpoint"][0]),
    "model": lambda places: model_options(places["checkpoint"][0]),
    "masking": lambda places: masking_options(places["checkpoint"][0]),
}


def machine_places(machine: Machine) -> dict[str, Any]:
    """Return the places of the machine: ``{machine}`` for fairseq-train, ``{device}`` for fairseq-validate, ..."""
    gpus = {"gpus": machine.gpus, "one-gpu": min(1, machine.gpus), "precision": machine.precision}
    # fairseq-validate computes in the precision of the weights, and does not know --precision.
    device = words_of(machine._replace(precision="fp32").options())
    return {"machine": words_of(machine.options()), "device": device, "machine-of-a-run": machine, **gpus}


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
    return per_token + (muon_flops(model) / tokens_of_update(options) if options["optimizer"] == "muon" else 0.0)


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


# What logs say


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


def pretraining_result(places: Any, log: Path) -> dict[str, Any]:
    """Return the result of a plan's pretraining."""
    return last_loss(log)


def best_score(places: Any, log: Path) -> dict[str, Any]:
    """Return the best validation of a fine-tuning by the task's metric; in SQuAD 2.0 that of the best threshold."""
    metric, folder = str(places["metric"]).removeprefix("answer_"), Path(places["folder"])
    if (folder / "valid.json").exists() and json.loads((folder / "valid.json").read_bytes())["version"] == "2.0":
        metric = f"best_{metric}"
    return best_validation(log, metric, [metric], ["valid"])


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
