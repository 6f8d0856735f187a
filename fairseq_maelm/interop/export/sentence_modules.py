"""Heads of sentences as modules of sentence-transformers: pooling, a dense layer with tanh, and the projection.

They are for heads that transformers' class of a format computes otherwise. The encoder in the folder is that of any
export, and the "embeddings" of texts are the head's scores.
"""

import json
import logging
from pathlib import Path
from typing import Any

import torch

from fairseq_maelm.checkpoints.folder import CONFIG_FILE, WEIGHTS_FILE, save_weights
from fairseq_maelm.modules.finetuning_heads import ClassificationHead

MODULES_FILE = "modules.json"
# All versions of sentence-transformers find their classes by these old names, and text-embeddings-inference by no
# others.
_CLASSES = "sentence_transformers.models."
_TANH, _NOTHING = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"


def write_modules(head: Any, folder: Path, dtype: torch.dtype) -> None:
    """Add the modules of a head to the folder of its encoder, with weights cast to ``dtype``."""
    assert type(head) is ClassificationHead
    pooling = {
        "word_embedding_dimension": head.dense_layer.in_features,
        "pooling_mode_cls_token": head.pooling == "first",
        "pooling_mode_mean_tokens": head.pooling == "mean",
    }
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense")]
    layers = {"2_Dense": (head.dense_layer, _TANH), "3_Dense": (head.out_proj, _NOTHING)}
    _write(folder / "1_Pooling" / CONFIG_FILE, pooling)
    for name, (layer, activation) in layers.items():
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": True}
        _write(folder / name / CONFIG_FILE, {**sizes, "activation_function": activation})
        weights = {f"linear.{kind}": weight.detach().to(dtype) for kind, weight in layer.named_parameters()}
        save_weights(weights, folder / name / WEIGHTS_FILE)
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": _CLASSES + kind}
        for number, (path, kind) in enumerate(modules)
    ]
    _write(folder / MODULES_FILE, listed)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def open_modules(folder: Path) -> Any:
    """Open a folder with sentence-transformers, without running code from it; raise a ValueError if it is missing."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(
            "this head is exported for sentence-transformers, which is not installed: pip install "
            "'fairseq_maelm[sentence-transformers]', or fine-tune with --pooling first"
        ) from error
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)  # it names the unfinished folder
    options = {"attn_implementation": "eager"}
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=options).eval()
