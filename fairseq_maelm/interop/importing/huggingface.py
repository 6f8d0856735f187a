"""Hugging Face folders of RoBERTa's and MPNet's shape as sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_maelm.files import sha256_of
from fairseq_maelm.interop.importing.huggingface_config import (
    check_config,
    has_decoder_options,
    model_options,
    read_config,
    task_options,
)
from fairseq_maelm.interop.importing.huggingface_vocabulary import read_vocabulary
from fairseq_maelm.interop.importing.huggingface_weights import FINE_TUNED_HEADS, convert_weights, read_weights
from fairseq_maelm.interop.importing.source import Reference, Source


def open_folder(folder: Path) -> Source:
    """Read a folder that transformers' save_pretrained has written. No code of the folder is run.

    Raises:
        FileNotFoundError: if the configuration or the weights are missing.
        ValueError: if transformers is not installed, or the model cannot be imported exactly.
    """
    config = read_config(folder)
    check_config(folder, config)
    theirs, files = read_weights(folder)
    weights = convert_weights(folder, config, theirs)
    rows, pad = len(weights["encoder.embed_tokens.weight"]), int(config.get("pad_token_id", 1))
    return Source(
        kind=f"Hugging Face {config['model_type']}",
        options=model_options(config),
        task_options=task_options(config),
        weights=weights,
        vocabulary=read_vocabulary(folder, rows, pad),
        reference=_reference(folder, config, weights),
        facts={
            "model_type": config["model_type"],
            "architectures": config.get("architectures"),
            "files": {file.name: sha256_of(file) for file in files},
        },
    )


def _reference(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Reference:
    kind, pad = _auto_class(weights), int(config.get("pad_token_id", 1))
    from fairseq_maelm.hf import open_pretrained  # brings transformers along

    model = open_pretrained(kind, folder).eval().float()

    def call(part: nn.Module) -> Callable[[Tensor], Any]:
        return torch.no_grad()(lambda tokens: part(input_ids=tokens, attention_mask=tokens.ne(pad).long()))

    encoder, whole = call(model.base_model), call(model)

    def encode(tokens: Tensor) -> Tensor:
        states: Tensor = encoder(tokens).last_hidden_state
        return states

    def fill(tokens: Tensor) -> Tensor:
        logits: Tensor = whole(tokens).logits
        return logits[tokens == config["mask_token_id"]]

    def score(tokens: Tensor) -> Tensor:
        output = whole(tokens)
        answers = kind.endswith("QuestionAnswering")
        return torch.stack([output.start_logits, output.end_logits], dim=-1) if answers else output.logits

    if kind == "AutoModel":
        return Reference(encode)
    if kind != "AutoModelForMaskedLM":
        return Reference(encode, score=score)
    return (
        Reference(encode, fill=fill)
        if has_decoder_options(config)
        else Reference(encode, torch.no_grad()(model.lm_head))
    )


def _auto_class(weights: dict[str, Tensor]) -> str:
    if "lm_head.bias" in weights:
        return "AutoModelForMaskedLM"
    kinds = {
        "sentence_classification_head": "AutoModelForSequenceClassification",
        "tagging_head": "AutoModelForTokenClassification",
        "span_head": "AutoModelForQuestionAnswering",
    }
    found = (kinds[name] for name in FINE_TUNED_HEADS if f"classification_heads.{name}.out_proj.weight" in weights)
    return next(found, "AutoModel")
