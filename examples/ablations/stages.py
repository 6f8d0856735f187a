"""The command lines of the study: pretraining of a row, and fine-tuning of its encoder on a task."""

import json
import sys
from argparse import Namespace
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(ROOT))

from rows import ModelSize, Row, row_options  # noqa: E402

from fairseq_maelm.models.sizes import SIZES  # noqa: E402
from fairseq_maelm.sweep.jobs import Process, visible  # noqa: E402

# How often a pretraining is validated and saved.
_STOPS = 10


# How a task is scored -> the name in the log.
METRICS = {
    **{name: name for name in ("accuracy", "mcc", "f1", "spearman", "pearson", "exact")},
    "answer_f1": "f1",
}
SQUAD_METRICS = ("exact", "answer_f1")


def is_squad(task: Path) -> bool:
    """Whether a folder is one of `maelm prepare squad`."""
    return (task / "train.npz").exists()


def metrics_of(task: Path) -> tuple[str, ...]:
    """What a task can be scored by, the usual one first: it has answers, labels that are names, or numbers."""
    if is_squad(task):
        return SQUAD_METRICS
    return ("accuracy", "mcc", "f1") if (task / "label" / "dict.txt").exists() else ("spearman", "pearson")


def logged_name(metric: str, task: Path) -> str:
    """What the log of a fine-tuning calls a metric: in SQuAD 2.0 that of the best threshold, as papers report it."""
    version = json.loads((task / "valid.json").read_bytes())["version"] if is_squad(task) else ""
    return ("best_" if version == "2.0" else "") + METRICS[metric]


def model_size(arch: str, options: list[str]) -> ModelSize:
    """The size that rows start from: the architecture's, unless an option changes it."""
    encoder = ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "encoder_layers")
    fields = (*encoder, "decoder_layers")
    sizes = dict(SIZES[arch])
    for word, value in zip(options, options[1:]):
        field = word[2:].replace("-", "_")
        if word.startswith("--") and field in fields:
            sizes[field] = int(value)
    return ModelSize(*(sizes[field] for field in fields))


def _machine(gpus: int, precision: str) -> list[str]:
    words = ["--distributed-world-size", str(gpus)] if gpus else ["--cpu", "--distributed-world-size", "1"]
    half = {"fp16": ["--fp16", "--fp16-init-scale", "4", "--fp16-scale-window", "256"], "bf16": ["--precision", "bf16"]}
    return [*words, *half.get(precision, [])]


def pretraining(args: Namespace, row: Row, save_dir: Path, slot: str) -> Process:
    """The command that pretrains a row, or goes on from its last checkpoint.

    Everything but the row's own options and the folder is equal for all rows.
    """
    gpus, stop = args.runner.gpus, str(max(1, args.updates // _STOPS))
    own = row_options(row, model_size(args.arch, args.pretraining_options))
    words = [
        "fairseq-train", args.data, "--user-dir", str(ROOT / "fairseq_maelm"), "--save-dir", str(save_dir),
        "--task", "maelm", "--criterion", "maelm", "--arch", args.arch,
        "--sample-break-mode", args.sample_break_mode, "--tokens-per-sample", str(args.tokens_per_sample),
        "--max-positions", str(args.tokens_per_sample), "--mask-prob", str(args.mask_prob),
        "--leave-unmasked-prob", str(args.leave_unmasked_prob), "--random-token-prob", str(args.random_token_prob),
        "--max-tokens", str(args.max_tokens), "--update-freq", str(args.update_freq // max(1, gpus)),
        "--max-update", str(args.updates), "--total-num-update", str(args.updates),
        "--warmup-updates", str(args.warm_up_updates), "--lr-scheduler", "polynomial_decay", "--lr", str(args.lr),
        "--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01",
        "--clip-norm", str(args.clip_norm), "--seed", str(args.seed),
        # By updates alone: an epoch of a small text is over in seconds.
        "--save-interval-updates", stop, "--keep-interval-updates", "1", "--no-epoch-checkpoints",
        "--save-interval", "1000000000", "--validate-interval", "1000000000",
        "--log-format", "json", "--log-interval", str(max(1, min(100, args.updates // 100))),
        "--num-workers", "2" if gpus else "0",
        *_machine(gpus, args.precision), *args.pretraining_options, *own,
    ]  # fmt: skip
    return Process(words, visible(slot))


def fine_tuning(args: Namespace, task: str, seed: int, checkpoint: Path, save_dir: Path, slot: str) -> Process:
    """The command that fine-tunes an encoder, by the recipe for its kind of task, on one GPU at most."""
    words = [
        "maelm", "finetune", args.tasks[task], "--checkpoint", str(checkpoint), "--output", str(save_dir),
        "--lr", str(args.fine_tuning_lr), "--epochs", str(args.fine_tuning_epochs),
        "--batch-size", str(args.fine_tuning_batch_size), "--warm-up", str(args.fine_tuning_warm_up),
        "--seed", str(seed), "--gpus", str(min(1, args.runner.gpus)), "--precision", args.precision,
        "--", "--no-save", *args.fine_tuning_options,
    ]  # fmt: skip
    return Process(words, visible(slot.split(",")[0]))
