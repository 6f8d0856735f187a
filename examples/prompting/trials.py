"""One fine-tuning run of the grid: its command, and what is kept of it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils

# The package is found beside the examples when it is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_maelm.models.maelm import complete_config
from fairseq_maelm.prompting.prompts import BUILT_IN, Prompt

ROOT = Path(__file__).resolve().parents[2]
FINETUNING = ROOT / "examples" / "finetuning"

# The one checkpoint of a finished run that is kept, as long as no other run of its split is better.
BEST = "checkpoint_best.pt"

ENCODER_FIELDS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "relative_buckets",
    "relative_num_buckets",
    "relative_max_distance",
    "max_positions",
)
DECODER_FIELDS = (
    "decoder_layers",
    "decoder_attention",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
)


@dataclass(frozen=True)
class Study:
    """What all runs share.

    Attributes:
        checkpoint: of pretraining.
        data: folder with its vocabulary.
        splits: folder of ``maelm prepare-few-shot``.
        output: folder of the runs.
        per_label: examples of each label.
        updates: of a run.
        validate_every: updates between validations.
        several_pieces: allow label words of several pieces.
        options: further options of fairseq-train.
    """

    checkpoint: Path
    data: Path
    splits: Path
    output: Path
    per_label: int
    updates: int
    validate_every: int
    several_pieces: bool
    options: tuple[str, ...] = ()

    def split(self, task: str, seed: int) -> Path:
        """Folder of the tables of a split."""
        return self.splits / "tables" / task / f"{self.per_label}-{seed}"


@dataclass(frozen=True)
class Trial:
    """A point of the grid: way "prompt" or "head", task, split, batch size and learning rate."""

    way: str
    task: str
    seed: int
    batch_size: int
    learning_rate: str

    def folder(self, study: Study) -> Path:
        """Where the run's checkpoint, log and result are."""
        name = f"{self.batch_size}-{self.learning_rate}"
        return study.output / self.way / self.task / str(self.seed) / name


def model_config(checkpoint: Path) -> Any:
    """Return the complete configuration of the checkpoint's model."""
    config: Any = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"].model
    if not str(getattr(config, "_name", "")).startswith("maelm"):
        raise SystemExit(f"{checkpoint} holds the model {getattr(config, '_name', 'unknown')}, not maelm")
    complete_config(config)
    return config


def model_options(config: Any, with_decoder: bool) -> list[str]:
    """Return the options that build the checkpoint's model."""
    options = ["--arch", str(config._name)]
    for field in [*ENCODER_FIELDS, *(DECODER_FIELDS if with_decoder else ())]:
        options += ["--" + field.replace("_", "-"), str(getattr(config, field))]
    if with_decoder and config.share_decoder_positions:
        options.append("--share-decoder-positions")
    return options


def command(trial: Trial, study: Study, save_dir: Path) -> list[str]:
    """Return the command of a run: the optimisation of Gao et al. (2021) by fairseq-train."""
    prompt, model = BUILT_IN[trial.task], model_config(study.checkpoint)
    if trial.way == "prompt":
        own = [str(study.data), "--task", "maelm_prompt", "--criterion", "maelm_prompt", "--prompt", trial.task]
        own += ["--examples", str(study.split(trial.task, trial.seed))]
        own += ["--several-pieces"] if study.several_pieces else []
        own += ["--max-length", str(min(prompt.max_length, model.max_positions))]
        metric = prompt.metrics[0]
    else:
        own = [str(save_dir.parent / "sentences"), "--task", "sentence_prediction", "--shorten-method", "truncate"]
        own += ["--criterion", "sentence_prediction", "--init-token", "0", "--separator-token", "2"]
        metric, options = head_metric(prompt)
        own += options
    updates = str(study.updates)
    every = str(study.validate_every)
    return [
        *["fairseq-train", *own, "--user-dir", str(ROOT / "fairseq_maelm"), "--save-dir", str(save_dir)],
        *["--finetune-from-model", str(study.checkpoint), *model_options(model, trial.way == "prompt")],
        *["--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-8", "--weight-decay", "0"],
        *["--clip-norm", "1.0", "--lr-scheduler", "polynomial_decay", "--lr", trial.learning_rate],
        *["--warmup-updates", "0", "--total-num-update", updates, "--max-update", updates],
        *["--batch-size", str(trial.batch_size), "--batch-size-valid", "32", "--required-batch-size-multiple", "1"],
        *["--dropout", "0.1", "--attention-dropout", "0.1", "--seed", str(trial.seed), "--num-workers", "0"],
        *["--validate-interval", "1000000", "--validate-interval-updates", every],
        *["--save-interval", "1000000", "--save-interval-updates", every, "--keep-interval-updates", "1"],
        *["--no-epoch-checkpoints", "--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric"],
        *["--log-format", "json", "--log-interval", every, *study.options],
        *([] if torch.cuda.is_available() else ["--cpu"]),
    ]


def head_metric(prompt: Prompt) -> tuple[str, list[str]]:
    """Return the name of the metric that chooses checkpoints in stock sentence_prediction, and options for it."""
    classes = ["--num-classes", str(1 if prompt.bounds else len(prompt.labels))]
    report = {
        "mcc": ["--report-mcc"],
        "f1": ["--report-acc-and-f1"],
        "pearson": ["--regression-target", "--report-pearson-and-spearman"],
    }
    return prompt.metrics[0], classes + report.get(prompt.metrics[0], [])


def prepare_sentences(trial: Trial, study: Study) -> None:
    """Make the folder that stock sentence_prediction reads, once for each split."""
    folder = trial.folder(study).parent / "sentences"
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    split = study.split(trial.task, trial.seed)
    words = [sys.executable, str(FINETUNING / "prepare_sentences.py"), "--data", str(study.data)]
    words += ["--train", str(split / "train.tsv"), "--valid", str(split / "valid.tsv"), "--output", str(folder)]
    subprocess.run(words + (["--regression"] if BUILT_IN[trial.task].bounds else []), check=True)


def run_trial(trial: Trial, study: Study) -> float:
    """Fine-tune, unless that was done before, and return the best figure on the development set, in percent."""
    folder = trial.folder(study)
    result = folder / "result.json"
    if result.exists():
        return float(json.loads(result.read_text())["dev"])
    if trial.way == "head":
        prepare_sentences(trial, study)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "train.log", "a", encoding="utf-8") as log:
        status = subprocess.run(command(trial, study, folder), stdout=log, stderr=subprocess.STDOUT).returncode
    if status:
        raise SystemExit(f"fairseq-train failed (exit status {status}); see {folder / 'train.log'}")
    dev = float(torch.load(folder / BEST, weights_only=True)["extra_state"]["val_loss"])
    write_result(result, {"dev": dev})
    for path in folder.glob("checkpoint_*.pt"):
        if path.name != BEST:
            path.unlink()
    return dev


def write_result(path: Path, content: dict[str, Any]) -> None:
    """Write figures to a file that is whole or absent."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content) + "\n")
    os.replace(partial, path)
