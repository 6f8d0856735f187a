"""Hugging Face folders of RoBERTa's and MPNet's shape as sources."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_maelm.corpus.files import sha256_of
from fairseq_maelm.importing.huggingface_config import check_config, model_options, read_config
from fairseq_maelm.importing.huggingface_vocabulary import read_vocabulary
from fairseq_maelm.importing.huggingface_weights import convert_weights, read_weights
from fairseq_maelm.importing.source import Reference, Source
from fairseq_maelm.libraries import import_transformers

# The encoder of an MLM has seen <mask>, and goes on seeing it.
MLM_TASK_OPTIONS = {"masked_input": "kept", "leave_unmasked_prob": 0.1, "random_token_prob": 0.1}


def open_folder(folder: Path) -> Source:
    """Read a folder that transformers' save_pretrained has written. No code of the folder is run.

    Raises:
        FileNotFoundError: if the configuration or the weights are missing.
        ValueError: if transformers is not installed, or the model cannot be imported exactly.
    """
    config = read_config(folder)
    check_config(folder, config)
    transformers = import_transformers()
    theirs, files = read_weights(folder)
    weights = convert_weights(folder, config, theirs)
    rows, pad = len(weights["encoder.embed_tokens.weight"]), int(config.get("pad_token_id", 1))
    return Source(
        kind=f"Hugging Face {config['model_type']}",
        options=model_options(config),
        task_options=dict(MLM_TASK_OPTIONS),
        weights=weights,
        vocabulary=read_vocabulary(folder, rows, pad, transformers),
        reference=_reference(folder, pad, "lm_head.bias" in weights, transformers),
        facts={
            "model_type": config["model_type"],
            "architectures": config.get("architectures"),
            "files": {file.name: sha256_of(file) for file in files},
        },
    )


def _reference(folder: Path, pad: int, with_head: bool, transformers: Any) -> Reference:
    kind = transformers.AutoModelForMaskedLM if with_head else transformers.AutoModel
    try:
        model = kind.from_pretrained(folder, local_files_only=True).eval().float()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ValueError(f"transformers cannot read {folder}: {error}") from error
    encoder: nn.Module = model.base_model
    head: nn.Module | None = model.lm_head if with_head else None

    @torch.no_grad()
    def encode(tokens: Tensor) -> Tensor:
        states: Tensor = encoder(input_ids=tokens, attention_mask=tokens.ne(pad).long()).last_hidden_state
        return states

    return Reference(encode, None if head is None else torch.no_grad()(head))
