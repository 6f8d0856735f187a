"""Small vocabularies and checkpoints in the form of ``maelm prepare corpus`` and ``fairseq-train``."""

import io
import random
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from support import model_config

from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig
from fairseq_maelm.tasks.maelm import MaelmTaskConfig
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.vocabulary import DICTIONARY_FILE, MODEL_FILE, dictionary_text, load_sentencepiece
from interop.export.texts import LINES

MODERN = {"layer": "modern", "positions": "rotary", "relative_buckets": "none", "rotary_base": 10_000}
HEADS = {
    "sentence_classification_head": ("first", 3),
    "mean_head": ("mean", 3),
    "tagging_head": ("token", 5),
    "span_head": ("token", 2),
    "spans": ("token", 2),
    "tags": ("token", 5),
}


def train_vocabulary(folder: Path, **options: Any) -> Path:
    """Make a data folder with a sentencepiece model of ``LINES`` and its dictionary."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"model_type": "bpe", "vocab_size": 620, "normalization_rule_name": "nmt_nfkc_cf"}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{**settings, **options},
    )
    (folder / MODEL_FILE).write_bytes(model.getvalue())
    (folder / DICTIONARY_FILE).write_text(dictionary_text(load_sentencepiece(model.getvalue())), encoding="utf-8")
    return folder


def shuffle_dictionary(folder: Path, surplus: int = 0) -> None:
    """Shuffle the symbols of dict.txt, and append filler symbols."""
    path = folder / DICTIONARY_FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    lines += [f"madeupword{number:04d} 0\n" for number in range(surplus)]
    path.write_text("".join(lines), encoding="utf-8")


def write_checkpoint(
    path: Path,
    data: Path,
    task: dict[str, Any] | None = None,
    heads: Iterable[str] = (),
    scale: float = 0.3,
    **model_options: Any,
) -> MaelmModel:
    """Save a checkpoint of a model with random weights, with fairseq's configuration and history.

    ``data`` is the folder of the dictionary, ``task`` has options that differ from the defaults, and ``heads`` (of
    ``HEADS``, or a dict like it) make it a checkpoint of fine-tuning. The weights' standard deviation ``scale`` is far
    above rounding.
    """
    torch.manual_seed(1)
    config = model_config(**model_options)
    model = MaelmModel(config, load_dictionary(str(data)), predicts_masked_tokens=not heads)
    of_task = {}
    for head in heads:
        kind, outputs = (heads if isinstance(heads, dict) else HEADS)[head]
        if kind != "token":
            model.register_classification_head(head, outputs, pooling=kind)
            of_task = {"num_classes": outputs, "classification_head_name": head, "max_positions": config.max_positions}
        else:
            model.register_token_head(head, outputs)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * scale
    options = {name: getattr(config, name) for name in _own_options(MaelmModelConfig)}
    state = {
        "cfg": {
            "_name": None,
            "common": {"seed": 1, "fp16": False},
            "model": {"_name": "maelm_tiny", **{name: str_or_number(value) for name, value in options.items()}},
            "task": {**_task_defaults(data), **of_task, **(task or {})},
            "optimization": {"lr": [0.001], "update_freq": [2], "max_update": 30},
            "dataset": {"batch_size": 8, "max_tokens": None},
            "checkpoint": {"best_checkpoint_metric": "loss"},
        },
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 30, "optimizer_name": "Adam", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 2}, "val_loss": 4.25, "best": 4.25},
        "task_state": {},
        "last_optimizer_state": None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    return model.eval()


def write_complete(folder: Path, data: Path, form: str = "modernbert", dtype: str = "float16", **options: Any) -> Path:
    """Write a checkpoint with random weights next to ``folder``, export it there with --complete, and return its path.

    ``options`` are those of ``write_checkpoint``; by default it has ModernBERT's layers.
    """
    checkpoint = folder.parent / "run" / "checkpoint_best.pt"
    write_checkpoint(checkpoint, data, **(options or MODERN))
    export(checkpoint, data, folder, ExportSettings(form, dtype=dtype, complete=True))
    return checkpoint


def str_or_number(value: Any) -> Any:
    """Return the form of an option's value in a checkpoint."""
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _task_defaults(data: Path) -> dict[str, Any]:
    defaults = {name: str_or_number(default) for name, default in _own_options(MaelmTaskConfig).items()}
    return {**defaults, "_name": "maelm", "data": str(data), "seed": 1, "tokens_per_sample": 20}


def _own_options(dataclass: Any) -> dict[str, Any]:
    """Return the names and defaults of options, without those that are resolved from fairseq's."""
    return {
        field.name: field.default
        for field in fields(dataclass)
        if not field.name.startswith("_") and "${" not in str(field.default)
    }
