"""The commands of the miniature, as they could be typed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

# What the studies share.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import study
from glue import TASKS
from scales import Scale, Stage

from fairseq_maelm.sweep.jobs import Process
from fairseq_maelm.train_command import Machine, words_of

MODELS: dict[str, dict[str, Any]] = {
    "MLM": {"masked-input": "kept", "decoder-layers": 0},
    "MAE-LM": {"masked-input": "dropped"},
}
RANDOM = "random weights"
PRETRAINING = {
    "initial-output-bias": "frequencies", "protect-special-tokens": True, "sample-break-mode": "none",
}  # fmt: skip

# Of the documents: enough to analyze, and soon validated.
_HELD_OUT = 0.004


def prepare_corpus(texts: list[Path], scale: Scale, data: Path) -> Process:
    """Return the command that makes vocabulary and binarized text, with some documents held out."""
    own = {"output": data, "valid-fraction": _HELD_OUT, "vocabulary-size": scale.vocabulary_size}
    return Process(["maelm", "prepare", "corpus", *map(str, texts), *words_of(own)], {})


def prepare_task(name: str, tables: Path, data: Path, output: Path) -> Process:
    """Return the command that prepares a GLUE task with the corpus' vocabulary."""
    own = {"train": tables / "train.tsv", "valid": tables / "valid.tsv", "vocabulary": data, "output": output}
    own["regression"] = TASKS[name].metric == "spearman"
    return Process(["maelm", "prepare", "sentences", *words_of(own)], {})


def _train(
    model: str, scale: Scale, stage: Stage, data: Path, save_dir: Path, gpu: bool, own: dict[str, Any]
) -> Process:
    options = {
        **PRETRAINING,
        **scale.model,
        "max-positions": scale.last.tokens_per_sample,
        "mask-prob": stage.mask_prob,
        "tokens-per-sample": stage.tokens_per_sample,
        "max-tokens": stage.max_tokens,
        "max-update": stage.updates,
        "lr": scale.learning_rate,
        "log-interval": max(1, min(50, stage.updates // 20)),
        **(Machine(1, "bf16") if gpu else Machine(0, "fp32")).options(),
        **MODELS[model],
    }
    options.setdefault("decoder-layers", scale.decoder_layers)
    return Process(study.pretraining(data, save_dir, {**options, **own}), {})


def pretrain(model: str, scale: Scale, number: int, data: Path, folder: Path, gpu: bool) -> Process:
    """Return the command of a stage of pretraining; the same again goes on from its last checkpoint.

    Args:
        model: a name of MODELS.
        scale: of the miniature.
        number: of the stage, from 0; each starts from the last checkpoint of the one before.
        data: the corpus.
        folder: of the model, with a folder for each stage.
        gpu: whether it has one.
    """
    stage, last = scale.stages[number], number == len(scale.stages) - 1
    own: dict[str, Any] = {"warmup-updates": max(1, stage.updates // 20), "save-interval-updates": stage.updates // 2}
    if number:
        own["finetune-from-model"] = stage_folder(folder, number - 1) / "checkpoint_last.pt"
    falling = {"lr-scheduler": "polynomial_decay", "total-num-update": stage.updates}
    own |= falling if last else {"lr-scheduler": "fixed"}
    return _train(model, scale, stage, data, stage_folder(folder, number), gpu, own)


def stage_folder(folder: Path, number: int) -> Path:
    """Return the folder of a stage's checkpoints."""
    return folder / f"stage_{number + 1}"


def half(scale: Scale) -> int:
    """Return the updates between two checkpoints of the last stage."""
    return scale.last.updates // 2


def draw_weights(scale: Scale, data: Path, save_dir: Path, gpu: bool) -> Process:
    """Return the command of one update at learning rate 0, which leaves the weights as the seed draws them."""
    still = {"lr": 0, "lr-scheduler": "fixed", "disable-validation": True}
    return _train("MLM", scale, replace(scale.last, updates=1), data, save_dir, gpu, still)


def fine_tune(scale: Scale, task: Path, checkpoint: Path, seed: int, save_dir: Path, gpu: bool, keep: bool) -> Process:
    """Return the command that fine-tunes by the recipe for sentences; ``keep``: the checkpoint is kept."""
    own: dict[str, Any] = {"lr": scale.fine_tuning_rate, "epochs": scale.fine_tuning_epochs, "seed": seed}
    own |= {"gpus": 1, "precision": "bf16"} if gpu else {"gpus": 0}
    return Process(study.fine_tuning(task, checkpoint, save_dir, own, None if keep else ["--no-save"]), {})


def analyze(models: dict[str, Path], output: Path, tokens: int, data: Path, text: Path | None) -> Process:
    """Return the command that analyzes on the corpus' held-out split, or on a text of its own."""
    words = ["maelm", "analyze", *words_of({"data": data, "output": output, "tokens": tokens, "text": text})]
    return Process(
        [*words, *(word for name, path in models.items() for word in ("--checkpoint", f"{name}={path}"))], {}
    )
