"""Fit a checkpoint's weights to a model: log what is dropped, and explain what does not fit."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_maelm.checkpoints.plain_data import CheckpointError
from fairseq_maelm.models.decoder import decoder_settings
from fairseq_maelm.models.encoder import identity_settings

logger = logging.getLogger(__name__)

_HEADS = "classification_heads."
# A model may have this many times the numbers of its checkpoint. Heads that the checkpoint lacks are small.
_SLACK = 2
_PREDICTION = ("decoder.", "lm_head.")


def fit_state_dict(model: Any, state_dict: dict[str, Tensor]) -> None:
    """Prepare a state dictionary for strict loading, in place.

    The decoder and the LM head are dropped if the model has neither (fine-tuning). Classification heads that the model
    lacks or has in another size are dropped; heads that the checkpoint lacks keep their random weights.

    Raises:
        ValueError: the checkpoint has another vocabulary, other sizes or other relative positions.
    """
    if model.lm_head is None:
        _drop(state_dict, [key for key in state_dict if key.startswith(_PREDICTION)], "not needed for fine-tuning")
    elif not any(key.startswith("lm_head.") for key in state_dict):
        raise ValueError(
            "the checkpoint has no LM head because it was fine-tuned: continue pretraining from a pretrained checkpoint"
        )
    _fit_heads(model, state_dict)
    _check_identity(model, state_dict)
    _check_decoder(model, state_dict)
    _check_shapes(model, state_dict)


def classification_heads(state_dict: dict[str, Tensor]) -> dict[str, list[int]]:
    """Return the heads of a checkpoint: name -> [number of classes, inner width]."""
    suffix = ".out_proj.weight"
    return {
        key[len(_HEADS) : -len(suffix)]: list(weight.shape)
        for key, weight in state_dict.items()
        if key.startswith(_HEADS) and key.endswith(suffix)
    }


def register_heads(model: Any, state_dict: dict[str, Tensor]) -> None:
    """Add the heads of a checkpoint to a model, with random weights; heads that it has in the same size stay."""
    own = model.classification_heads.state_dict()
    for name, (outputs, inner_dim) in classification_heads(state_dict).items():
        if _same_head(own, state_dict, name):
            continue
        if f"{_HEADS}{name}.dense.weight" in state_dict:  # heads of tokens have no dense layer
            model.register_classification_head(name, outputs, inner_dim)
        else:
            model.register_token_head(name, outputs)


def build_with_heads(build: Callable[[], Any], weights: dict[str, Tensor], path: Path) -> Any:
    """Build a model with the heads of a checkpoint, first without memory.

    Args:
        build: builds the model.
        weights: weights of the checkpoint.
        path: path of the checkpoint, for messages.

    Raises:
        CheckpointError: the model would be larger than the weights; nothing was allocated for it.
    """
    with torch.device("meta"):
        model = build()
        register_heads(model, weights)
    asked = sum(parameter.numel() for parameter in model.parameters())
    held = sum(weight.numel() for weight in weights.values())
    if asked > _SLACK * held:
        raise CheckpointError(f"{path} holds {held:,} parameters, but with this dict.txt its model has {asked:,}")
    model = build()
    register_heads(model, weights)
    return model


def _same_head(own: dict[str, Tensor], state_dict: dict[str, Tensor], name: str) -> bool:
    theirs = {key[len(_HEADS) :]: tensor for key, tensor in state_dict.items() if key.startswith(f"{_HEADS}{name}.")}
    mine = {key: tensor for key, tensor in own.items() if key.startswith(f"{name}.")}
    return theirs.keys() == mine.keys() and all(mine[key].shape == tensor.shape for key, tensor in theirs.items())


def _drop(state_dict: dict[str, Tensor], keys: list[str], reason: str) -> None:
    if keys:
        parameters = sum(state_dict[key].numel() for key in keys)
        parts = sorted({key.split(".")[0] for key in keys})
        logger.info("dropping %s of the checkpoint (%s parameters): %s", ", ".join(parts), f"{parameters:,}", reason)
    for key in keys:
        del state_dict[key]


def _fit_heads(model: Any, state_dict: dict[str, Tensor]) -> None:
    own = model.classification_heads.state_dict()
    for name, (classes, inner_dim) in classification_heads(state_dict).items():
        weight = own.get(f"{name}.out_proj.weight")
        same_kind = (f"{name}.dense.weight" in own) == (f"{_HEADS}{name}.dense.weight" in state_dict)
        if weight is None or list(weight.shape) != [classes, inner_dim] or not same_kind:
            logger.warning(
                "head %r of the checkpoint (%d classes) is dropped: the model %s",
                name,
                classes,
                "has no such head" if weight is None else f"has a new one with {weight.shape[0]} classes",
            )
            for key in [key for key in state_dict if key.startswith(f"{_HEADS}{name}.")]:
                del state_dict[key]
    for key, weight in own.items():
        state_dict.setdefault(_HEADS + key, weight)


def _check_identity(model: Any, state_dict: dict[str, Tensor]) -> None:
    saved = state_dict.get("encoder.identity")
    if saved is None:
        raise ValueError("this is not a checkpoint of the model maelm: its encoder.identity is missing")
    if len(state_dict["encoder.embed_tokens.weight"]) != model.encoder.embed_tokens.num_embeddings:
        raise ValueError(
            f"the checkpoint's vocabulary has {len(state_dict['encoder.embed_tokens.weight'])} symbols and the data's "
            f"has {model.encoder.embed_tokens.num_embeddings}: use the dict.txt that the checkpoint was trained with"
        )
    if saved.shape != model.encoder.identity.shape:
        return  # reported with the other shapes
    own = identity_settings(model.encoder.identity)
    for name, theirs in identity_settings(saved).items():
        if theirs == own[name]:
            continue
        if name == "vocabulary":
            raise ValueError(
                "the checkpoint was trained with another vocabulary of the same size: the data must be prepared with "
                "the checkpoint's sentencepiece.bpe.model and dict.txt"
            )
        raise ValueError(
            f"the checkpoint was trained with {name} {theirs} and not {own[name]}: pass the same --arch, relative "
            "position options and --layer-norm-eps as in pretraining"
        )


def _check_decoder(model: Any, state_dict: dict[str, Tensor]) -> None:
    saved = state_dict.get("decoder.identity")
    if model.lm_head is None or model.decoder is None or saved is None:
        return
    own = decoder_settings(model.decoder.identity)
    for name, theirs in decoder_settings(saved).items():
        if theirs != own[name]:
            raise ValueError(
                f"the checkpoint was trained with {name} {theirs} and not {own[name]}: pass the decoder's options as "
                "in pretraining"
            )


def _check_shapes(model: Any, state_dict: dict[str, Tensor]) -> None:
    own = model.state_dict()
    wrong = [
        f"{key} is {list(state_dict[key].shape)} and should be {list(own[key].shape)}"
        for key in own
        if key in state_dict and state_dict[key].shape != own[key].shape
    ]
    missing = [key for key in own if key not in state_dict]
    surplus = [key for key in state_dict if key not in own]
    if wrong or missing or surplus:
        shown = wrong + [f"{key} is missing" for key in missing] + [f"{key} is not in the model" for key in surplus]
        raise ValueError(
            f"the checkpoint and the model have different sizes ({len(shown)} differences; the first: {shown[0]}): "
            "pass the --arch, the layer and position options that the checkpoint was trained with"
        )
